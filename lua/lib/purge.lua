-- Taking one ticket out of the queue. Uses: queue, deadlines, and what advance.lua has.
-- The sorted set says who is alive, so ZREM alone ends a ticket in O(log n). The list is kept
-- exact while it is short; a dead ticket in the middle of a long one waits until advance or
-- compact meets it.
local function purge(place)
  if call('ZREM', deadlines, ticket_of(place)) == 0 then return end
  if call('ZCARD', deadlines) == 0 then
    call('DEL', queue)
  elseif call('LLEN', queue) <= 128 then
    call('LREM', queue, -1, place)
  elseif call('LINDEX', queue, -1) == place then
    call('RPOP', queue)
  else
    compact()
  end
end

-- R3: a late copy of this owner's requests up to `seq` finds a tombstone until `last_ms`, the
-- instant (server time) after which the server refuses them anyway.
local function bury(left, seq, last_ms)
  if last_ms < now then return end
  local buried = tonumber(call('GET', left) or 0) or 0
  -- Neither the seq nor the time of an earlier tombstone shrinks.
  local lifetime = math.max(call('PTTL', left), last_ms - now + 1000)
  call('SET', left, exact(math.max(seq, buried)), 'PX', lifetime)
end
