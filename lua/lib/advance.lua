-- Passing a free lock on (R6). Included by every script that can find or make the lock free.
-- Uses: lock, queue, deadlines, tokens, grant_ttl, token_ttl, channel, present, clock, now,
-- grant.lua and place.lua. `present` is the client that runs the script: it is reachable, whatever its
-- subscription does.

-- In one call, so that none grows with the queue: looking at a ticket is cheap, clearing one is not.
local EXAMINED_AT_MOST, CLEARED_AT_MOST = 1024, 128
local FIRST_BLOCK = 2 -- the first in line is nearly always alive

-- A token that is none would reach the client as a reply that nobody knows.
local function known(token, key)
  if token and not tonumber(token) then
    error({ err = 'ERR fairlock: the key \'' .. key .. '\' does not hold a lock of fairlock; delete it' })
  end
  return token
end

-- Ticket -> owner, client, seq
local function parts(ticket)
  return string.match(ticket, '^((.*):%d+):(%d+)$')
end

-- The tickets of a block of places, and when each is dead: false where it has left.
local function look(block)
  local tickets = {}
  for i = 1, #block do tickets[i] = ticket_of(block[i]) end
  return tickets, read('ZMSCORE', deadlines, unpack(tickets))
end

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

-- Makes the first live ticket that can be told of it the owner. Dead tickets on the way go for
-- good; one whose client has no subscription is passed over and stays first in line.
-- The lock must be free, or `ending`: then its hold ends here, once all that is to be written has
-- been read. `head` is the first block of the queue, where the caller has read it. Returns `more`,
-- whether another call would get further, and `stopped`, whether it ended at its bound rather than
-- at a winner or the end of the queue.
local function advance(ending, head)
  local kept, removed, reachable = {}, {}, {}
  local seen, size, winner, last = 0, FIRST_BLOCK, nil, false
  while not winner and seen < EXAMINED_AT_MOST and #removed < CLEARED_AT_MOST do
    local block = seen == 0 and head or read('LRANGE', queue, seen, seen + size - 1)
    last = #block < size
    if #block == 0 then break end
    local tickets, ends = look(block)
    for i, place in ipairs(block) do
      seen = seen + 1
      local ticket = tickets[i]
      local owner, client, seq = parts(ticket)
      local left = owner and ends[i] and ends[i] - now or 0
      if left <= 0 then
        removed[#removed + 1] = ticket
      else
        local token, lease
        if reachable[client] ~= false then
          -- Never longer than the ticket's own deadline, so that many frozen waiters together cost
          -- one waiter time-to-live and not one grant each (P6).
          lease = left < tonumber(grant_ttl) and exact(left) or grant_ttl
          token = next_token()
          -- The message says for how long: the waiter's own settings may differ from ours (R7).
          local message = 'grant ' .. token .. ' ' .. lease .. ' ' .. ticket .. ' ' .. lock
          reachable[client] = call('PUBLISH', channel .. client, message) > 0 or client == present
        end
        if reachable[client] then
          if ending then call('DEL', lock) end
          hold(owner, seq, token, lease, label_of(place))
          removed[#removed + 1] = ticket
          winner = true
        else
          kept[#kept + 1] = place
        end
      end
      if winner or #removed == CLEARED_AT_MOST then
        last = last and i == #block
        break
      end
    end
    size = 128
  end
  if #removed > 0 then drop_head(seen, kept, removed, last) end
  if ending and not winner then call('DEL', lock) end
  local stopped = not winner and (seen >= EXAMINED_AT_MOST or #removed >= CLEARED_AT_MOST)
  return stopped and #removed > 0, stopped
end
