-- The token of the next grant. Pasted in place, since a function costs as much as a small call. Uses: tokens, now_us,
-- current (the token of the hold that ends, which counts even if the stored one expired under a long hold).
-- R10: the clock keeps tokens growing after a loss of the stored one, and the stored one while the clock stops or goes
-- back. A script that may write does this before its first write: a bad value in the key must not stop it half-way.
local stored = redis.pcall('GET', tokens)
local token, last = now_us, stored or '0'
-- Usually both are earlier than the clock, and no text becomes a number.
if stored and not (#stored == 16 and stored < now_us) or current and not (#current == 16 and current < now_us) then
  if last.err then
    local reply, key = last, tokens
    --#paste refuse
  end
  local number = tonumber(last)
  if number and current then number = math.max(number, tonumber(current)) end
  -- Not `nan`: every comparison with it is false.
  if not (number and number >= 0 and number < 9007199254740991) then
    error({ err = 'ERR fairlock: the key \'' .. tokens .. '\' does not hold a token; delete it' })
  end
  -- `%d`, because `..` and `tostring` round to 14 digits, and tokens have 16.
  token = string.format('%d', math.max(number + 1, tonumber(now_us)))
end
