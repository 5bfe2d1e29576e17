--#include clock
-- From free to held. Uses: lock, tokens, token_ttl.

-- Refuses a hash whose token is not a number: no client could read the reply.
local function check_token(token)
  if token and not tonumber(token) then
    error({ err = 'ERR fairlock: the key \'' .. lock .. '\' does not hold a lock of fairlock; delete it' })
  end
end

local stored -- what last_token has read

-- The last token given, or 0. A script that may write calls this before its first write: once the lock is
-- freed, a bad value in the key must not stop the script.
local function last_token()
  if stored then return stored end
  stored = tonumber(read('GET', tokens) or 0)
  if not stored or stored >= 9007199254740991 then
    error({ err = 'ERR fairlock: the key \'' .. tokens .. '\' does not hold a token; delete it' })
  end
  return stored
end

-- R10: the clock keeps tokens growing after the stored one was lost, and the stored one keeps them growing
-- while the clock stands still or has gone back.
local function next_token()
  local fresh, last = clock[1] * 1000000 + clock[2], last_token()
  return WHOLE:format(last >= fresh and last + 1 or fresh)
end

-- The only place where a lock goes from free to held. Returns the token.
local function hold(owner, seq, token, lease, label)
  call('HSET', lock, owner, '1', '!attempt', seq, '!token', token, '!label', label)
  call('PEXPIRE', lock, lease)
  call('SET', tokens, token, 'PX', token_ttl)
  return token
end
