-- From free to held. Uses: lock, tokens, token_ttl, clock.

local stored -- the last token given, once it is read

-- Validates as it reads: what follows may already have freed the lock.
local function last_token()
  if stored then return stored end
  stored = tonumber(read('GET', tokens) or 0)
  if not stored or stored >= 9007199254740991 then
    error({ err = 'ERR fairlock: the key \'' .. tokens .. '\' does not hold a token; delete it' })
  end
  return stored
end

-- R10: the clock keeps tokens growing when the stored one was lost, the stored one when the clock
-- stands still or went back.
local function next_token()
  local fresh, last = clock[1] * 1000000 + clock[2], last_token()
  return exact(last >= fresh and last + 1 or fresh)
end

-- The one place where the lock goes from free to held.
local function hold(owner, seq, token, lease, label)
  call('HSET', lock, owner, '1', '!attempt', seq, '!token', token, '!label', label)
  call('PEXPIRE', lock, lease)
  call('SET', tokens, token, 'PX', token_ttl)
end
