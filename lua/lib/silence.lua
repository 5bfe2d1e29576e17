--#include millis
--#include read
-- A silence is forgiven. A server that stood still would find all who wait dead, and take out their places (P3). So where no
-- client of the queue was heard for half a waiter_ttl, it was the server or the network that stood still, and for one
-- waiter_ttl nobody counts as dead. To each client once until it is heard again: else newcomers, each of which is heard,
-- would keep the places of the dead alive for ever (P6). Uses: deadlines, settings.
local waiter_ttl = tonumber(string.match(settings, '^%d+'))

-- Until when nobody counts as dead, in server ms, or 0, but for those with a deadline before `spent`: they were forgiven the
-- silence before this one. And whether that has yet to be noted. To be asked before a deadline is pushed on, since that ends
-- the silence.
local function find_silence()
  local notes = read('ZMSCORE', deadlines, '!forgiven', '!spent')
  local noted = tonumber(notes[1] or '0')
  if noted > now then return noted, tonumber(notes[2] or '0'), false end
  -- The furthest deadline is that of the client that was heard last. Of those that are passed over it is negative.
  local last = call('ZREVRANGEBYSCORE', deadlines, '(inf', '0', 'WITHSCORES', 'LIMIT', '0', '1')
  local first = call('ZRANGEBYSCORE', deadlines, '-inf', '(0', 'WITHSCORES', 'LIMIT', '0', '1')
  local heard = math.max(tonumber(last[2] or '0'), -tonumber(first[2] or '0'))
  if heard <= noted or heard - now > waiter_ttl / 2 then return 0, 0, false end
  -- A millisecond before the deadline of a client that is heard by this call: it was heard since.
  return now + waiter_ttl - 1, noted, true
end

-- Until when a client with this deadline lives, by what `find_silence` has found.
local function lives_until(deadline, forgiven, spent)
  return deadline >= spent and math.max(deadline, forgiven) or deadline
end

-- `!skip` counts the dead, so it ends.
local function forgive(until_ms, spent)
  call('ZADD', deadlines, string.format('%d', until_ms), '!forgiven', string.format('%d', spent), '!spent')
  call('ZREM', deadlines, '!skip')
end
