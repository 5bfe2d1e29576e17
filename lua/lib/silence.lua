--#include millis
--#include read
-- Forgives a silence. A server that stalls would find all waiters dead, and take out their places (P3). So if no client
-- of the queue sent a request for half a waiter_ttl, the server or the network stalled, and for one waiter_ttl no
-- client counts as dead. Each client gets this once until its next request: otherwise newcomers, with a request each,
-- would keep the places of the dead alive without end (P6). Uses: deadlines, settings.
local waiter_ttl = tonumber(string.match(settings, '^%d+'))

-- Returns until when no client counts as dead, in server ms, or 0; `spent`: clients with an earlier deadline got their
-- forgiveness in the silence before, and do count as dead; and whether this is new, so that the caller must note it.
-- Call it before you extend a deadline, since that ends the silence.
local function find_silence()
  local notes = read('ZMSCORE', deadlines, '!forgiven', '!spent')
  local noted = tonumber(notes[1] or '0')
  if noted > now then return noted, tonumber(notes[2] or '0'), false end
  -- The furthest deadline belongs to the client with the latest request. Passed-over clients have negative deadlines.
  local last = call('ZREVRANGEBYSCORE', deadlines, '(inf', '0', 'WITHSCORES', 'LIMIT', '0', '1')
  local first = call('ZRANGEBYSCORE', deadlines, '-inf', '(0', 'WITHSCORES', 'LIMIT', '0', '1')
  local heard = math.max(tonumber(last[2] or '0'), -tonumber(first[2] or '0'))
  if heard <= noted or heard - now > waiter_ttl / 2 then return 0, 0, false end
  -- A millisecond before the deadline that this call's client gets: its request came after the silence.
  return now + waiter_ttl - 1, noted, true
end

-- Until when a client with this deadline lives, given the result of `find_silence`.
local function lives_until(deadline, forgiven, spent)
  return deadline >= spent and math.max(deadline, forgiven) or deadline
end

-- `!skip` counts places of dead clients, so it ends.
local function forgive(until_ms, spent)
  call('ZADD', deadlines, string.format('%d', until_ms), '!forgiven', string.format('%d', spent), '!spent')
  call('ZREM', deadlines, '!skip')
end
