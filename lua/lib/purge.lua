-- Taking one ticket out of the queue. Uses: queue, deadlines, labels.
-- The sorted set says who is alive, so ZREM alone ends a ticket in O(log n). The list is kept
-- exact while it is short and trimmed where that is cheap; a dead ticket in the middle of a long
-- list waits until advance meets it, or until the dead outnumber the living.
local function purge(ticket)
  if redis.call('ZREM', deadlines, ticket) == 0 then return end
  local living = redis.call('ZCARD', deadlines)
  if living == 0 then
    redis.call('DEL', queue, labels)
    return
  end
  local length = redis.call('LLEN', queue)
  if length <= 128 or length > 2 * living + 128 then
    redis.call('LREM', queue, -1, ticket)
    return
  end
  for _ = 1, 16 do
    local last = redis.call('LINDEX', queue, -1)
    if not last or redis.call('ZSCORE', deadlines, last) then return end
    redis.call('RPOP', queue)
  end
end

-- R3: a late copy of this owner's requests up to `seq` finds a tombstone until `last_ms`, the
-- instant (server time) after which the server refuses them anyway.
local function bury(left, seq, last_ms)
  if last_ms <= now then return end
  local buried = tonumber(redis.call('GET', left) or '0') or 0
  redis.call('SET', left, exact(math.max(seq, buried)), 'PX', last_ms - now + 1000)
end
