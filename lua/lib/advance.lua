-- Passing a free lock on (R6): whose turn it is. Included by every script that can find or make the
-- lock free. Uses: lock, queue, deadlines, look.lua and serve.lua.

-- In one call, so that none grows with the queue: looking at a ticket is cheap, clearing one is not.
local EXAMINED_AT_MOST, CLEARED_AT_MOST = 1024, 64

-- Replaces the first `seen` places by `kept`, and forgets `removed`. `last`: there are no others.
local function drop_head(seen, kept, removed, last)
  if last and #kept == 0 then
    call('DEL', queue, deadlines)
    return
  end
  call('ZREM', deadlines, unpack(removed))
  if seen == 1 then
    call('LPOP', queue)
    return
  end
  local lifetime = call('PTTL', queue)
  call('LTRIM', queue, seen, -1)
  if #kept > 0 then
    for i = #kept, 1, -1 do call('LPUSH', queue, kept[i]) end
    -- Trimmed to nothing and pushed again it would live for ever (P10).
    if lifetime > 0 then call('PEXPIRE', queue, lifetime) end
  end
  if call('EXISTS', queue) == 0 then call('DEL', deadlines) end
end

-- Serves the first live ticket that can be told of it. Dead tickets on the way go for good; one whose
-- client has no subscription is passed over and stays first in line. `ending` as for `serve`.
-- Returns `more`, whether another call would get further, and `stopped`, whether it ended at its bound
-- rather than at a winner or the end of the queue.
local function advance(ending)
  local kept, removed = {}, {}
  local seen, size, winner, last = 0, 2, false, false -- the first in line is nearly always alive
  while not winner and seen < EXAMINED_AT_MOST and #removed < CLEARED_AT_MOST do
    local block = read('LRANGE', queue, seen, seen + size - 1)
    last = #block < size
    if #block == 0 then break end
    local tickets, ends = look(block)
    for i, place in ipairs(block) do
      seen = seen + 1
      local fate = serve(place, tickets[i], ends[i], ending)
      winner = fate == 'served'
      if fate == 'deaf' then
        kept[#kept + 1] = place
      else
        removed[#removed + 1] = tickets[i]
      end
      if winner or #removed == CLEARED_AT_MOST then
        last = last and i == #block
        break
      end
    end
    size = CLEARED_AT_MOST
  end
  if #removed > 0 then drop_head(seen, kept, removed, last) end
  if ending and not winner then call('DEL', lock) end
  local stopped = not winner and (seen >= EXAMINED_AT_MOST or #removed >= CLEARED_AT_MOST)
  return stopped and #removed > 0, stopped
end
