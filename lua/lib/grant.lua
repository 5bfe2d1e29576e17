--#include clock
-- From free to held. `terms` are those of an acquire: grant_ttl/label. Uses: lock, tokens, token_ttl (or settings).

-- Whether one number is greater than another, both whole and not negative, and written as texts.
local function exceeds(one, other)
  return #one > #other or #one == #other and one > other
end

local stored -- the last token given, once next_token has looked

-- R10: the clock keeps tokens growing after the stored one was lost, and the stored one keeps them growing while
-- the clock stands still or has gone back. `current` is the token of the hold that ends, which counts even if the
-- stored one expired under a long hold.
-- A script that may write calls this before its first write: a bad value in the key must not stop it half-way.
local function next_token(current)
  stored = read('GET', tokens)
  local last = stored or '0'
  if current and exceeds(current, last) then last = current end
  -- The usual case.
  if not stored and not current or #last == 16 and last < now_us then return now_us end
  local number = tonumber(last)
  if not number or number >= 9007199254740991 then
    error({ err = 'ERR fairlock: the key \'' .. tokens .. '\' does not hold a token; delete it' })
  end
  -- `%d`, because `..` and `tostring` round to 14 digits, and tokens have 16.
  return string.format('%d', math.max(number + 1, clock[1] * 1000000 + clock[2]))
end

-- The only place where a lock goes from free to held, or from one owner to the next. `ending` is the owner whose
-- hold ends here. Its field goes first, so that a hash never has two owners, whatever is refused. `!grant` stays: in a
-- slot that moves to another node a deleted key cannot be written again (R13).
local function hold(owner, seq, token, lease, terms, ending)
  if ending and ending ~= owner then call('HDEL', lock, ending) end
  call('HSET', lock, owner, '1', '!grant', seq .. ' ' .. token .. ' ' .. clock[1] .. ' ' .. clock[2] .. ' ' .. terms)
  call('PEXPIRE', lock, lease)
  -- A token is the time of its grant, as a rule. The first grant in each 100 s sets the time to live anew, and the
  -- others keep it, which is cheaper by a third.
  if stored and string.sub(stored, 1, 8) == string.sub(token, 1, 8) then
    call('SET', tokens, token, 'KEEPTTL')
  else
    local lifetime = token_ttl or string.match(settings, '^%d+ %d+ (%d+)')
    call('SET', tokens, token, 'PX', string.format('%d', lifetime + 100000))
  end
end
