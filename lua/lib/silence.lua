--#include millis
--#include read
-- A silence is forgiven once. A server that stood still would find all who wait dead, and take out their places (P3). So where
-- no client of the queue was heard for half a waiter_ttl, it was the server or the network that stood still, and for one
-- waiter_ttl nobody counts as dead. No second time before somebody was heard after the first: else a queue of the dead
-- would live for ever. Uses: deadlines, settings.
local waiter_ttl = tonumber(string.match(settings, '^%d+'))

-- Until when nobody counts as dead, in server ms, or 0; and whether that has yet to be noted. To be asked before a deadline is
-- pushed on, since that ends the silence.
local function find_silence()
  local noted = tonumber(read('ZSCORE', deadlines, '!forgiven') or '0')
  -- The furthest deadline is that of the client that was heard last. Of those that are passed over it is negative.
  local last = call('ZREVRANGEBYSCORE', deadlines, '(inf', '0', 'WITHSCORES', 'LIMIT', '0', '1')
  local first = call('ZRANGEBYSCORE', deadlines, '-inf', '(0', 'WITHSCORES', 'LIMIT', '0', '1')
  local heard = math.max(tonumber(last[2] or '0'), -tonumber(first[2] or '0'))
  if heard > noted and heard - now <= waiter_ttl / 2 then return now + waiter_ttl, true end
  return noted > now and noted or 0, false
end

-- `!skip` counts the dead, so it ends.
local function forgive(until_ms)
  call('ZADD', deadlines, string.format('%d', until_ms), '!forgiven')
  call('ZREM', deadlines, '!skip')
end
