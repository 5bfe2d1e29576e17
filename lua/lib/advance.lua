--#include serve
-- Whose turn it is (R6), and what keeps the queue in order. Included by every script that can find the lock
-- free or free it. Uses: lock, queue, deadlines.

-- Bounds for one call, so that its time does not grow with the queue. Clearing costs ten times what looking does.
local EXAMINED_AT_MOST, CLEARED_AT_MOST = 1024, 64

-- The tickets of some entries, and their deadlines: false for a ticket that has left.
local function look(entries)
  local tickets = {}
  for i = 1, #entries do tickets[i] = ticket_of(entries[i]) end
  return tickets, read('ZMSCORE', deadlines, unpack(tickets))
end

-- Replaces the first `seen` entries by `kept` and removes the tickets `removed`. `last`: there are no more entries.
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
    -- P10: a list that was trimmed to nothing and filled again has lost its time-to-live.
    if lifetime > 0 then call('PEXPIRE', queue, lifetime) end
  end
  if call('EXISTS', queue) == 0 then call('DEL', deadlines) end
end

-- R6: serves the first live ticket whose client is reachable, in the script that freed the lock. So there is
-- no instant in which a newcomer could overtake (P3). Dead tickets on the way are removed; those of
-- unreachable clients are passed over and keep their place. `ending` is explained at `serve`.
-- Returns `more`, whether another call would clear more, and `stopped`, whether this one ended at a bound
-- and not at a winner or at the end of the queue.
local function advance(ending)
  local kept, removed = {}, {}
  local seen, size, winner, last = 0, 2, false, false -- the first in line is nearly always alive
  while not winner and seen < EXAMINED_AT_MOST and #removed < CLEARED_AT_MOST do
    local block = read('LRANGE', queue, seen, seen + size - 1)
    last = #block < size
    if #block == 0 then break end
    local tickets, ends = look(block)
    for i, entry in ipairs(block) do
      seen = seen + 1
      local outcome = serve(entry, tickets[i], ends[i], ending)
      winner = outcome == 'served'
      if outcome == 'unreachable' then
        kept[#kept + 1] = entry
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

-- What is left of the holder's lease, in ms. A hash without a lease was made by a script that was refused before it
-- could set one, when a right was taken away. Without a lease here it would stay held forever if its client died.
local function lease_left()
  local remaining = call('PTTL', lock)
  if remaining ~= -1 then return remaining end
  call('PEXPIRE', lock, grant_ttl)
  return tonumber(grant_ttl)
end

-- R7: while the lock is free, a lower bound for the token of the next grant. An older grant that is still on
-- its way to the client does not pass it.
local function free_floor()
  return WHOLE:format(math.max(last_token(), clock[1] * 1000000 + clock[2]))
end

-- P10: the keys of the queue outlive the furthest deadline by at least half a waiter_ttl and expire soon
-- after it. Both expire together: a ticket in the sorted set whose entry in the list has expired would be
-- told that it is queued, and would never be served. `fresh`: the sorted set is new and has no lifetime yet.
local function keep_queue(waiter_ttl, fresh)
  local lifetime = call('PTTL', queue)
  if not fresh and lifetime >= 1.5 * waiter_ttl then return end
  lifetime = math.max(2 * waiter_ttl, lifetime)
  call('PEXPIRE', queue, lifetime)
  call('PEXPIRE', deadlines, lifetime)
end
