-- Passing a free lock on (R6). Included by every script that can find or make the lock free.
-- Uses: lock, queue, deadlines, tokens, labels, grant_ttl, token_ttl, channel, present, clock, now,
-- and grant.lua. `present` is the client that runs the script: it is reachable, whatever its
-- subscription does.

-- In one call, so that none grows with the queue: looking at a ticket is cheap, clearing one is not.
local EXAMINED_AT_MOST, CLEARED_AT_MOST = 1024, 128
local FIRST_BLOCK = 2 -- the first in line is nearly always alive

-- `<client>:<n>:<seq>` -> owner, client, seq
local function parts(ticket)
  return string.match(ticket, '^((.*):%d+):(%d+)$')
end

-- Replaces the first `seen` places by `kept`, and forgets `removed`. `last`: there are no others.
local function drop_head(seen, kept, removed, last)
  if last and #kept == 0 then
    redis.call('DEL', queue, deadlines, labels)
    return
  end
  read('HDEL', labels, unpack(removed))
  redis.call('ZREM', deadlines, unpack(removed))
  if seen == 1 then
    redis.call('LPOP', queue)
    return
  end
  local lifetime = redis.call('PTTL', queue)
  redis.call('LTRIM', queue, seen, -1)
  if #kept > 0 then
    for i = #kept, 1, -1 do redis.call('LPUSH', queue, kept[i]) end
    -- Trimmed to nothing and pushed again it would live for ever (P10).
    if lifetime > 0 then redis.call('PEXPIRE', queue, lifetime) end
  end
  if redis.call('EXISTS', queue) == 0 then redis.call('DEL', deadlines, labels) end
end

-- Makes the first live ticket that can be told of it the owner. Dead tickets on the way go for
-- good; one whose client has no subscription is passed over and stays first in line.
-- The lock must be free, or `ending`: then its hold ends here, once all that is to be written has
-- been read. Returns `more`, whether another call would get further, and `stopped`, whether it
-- ended at its bound rather than at a winner or the end of the queue.
local function advance(ending)
  local kept, removed, reachable = {}, {}, {}
  local seen, size, winner, last = 0, FIRST_BLOCK, nil, false
  while not winner and seen < EXAMINED_AT_MOST and #removed < CLEARED_AT_MOST do
    local block = read('LRANGE', queue, seen, seen + size - 1)
    last = #block < size
    if #block == 0 then break end
    local ends = read('ZMSCORE', deadlines, unpack(block))
    for i, ticket in ipairs(block) do
      seen = seen + 1
      local ends_at = tonumber(ends[i])
      local owner, client, seq = parts(ticket)
      if not ends_at or not owner or ends_at <= now then
        removed[#removed + 1] = ticket
        if #removed == CLEARED_AT_MOST then
          last = last and i == #block
          break
        end
      else
        local token, lease, label
        if reachable[client] ~= false then
          -- Never longer than the ticket's own deadline, so that many frozen waiters together cost
          -- one waiter time-to-live and not one grant each (P6).
          lease = exact(math.min(grant_ttl, ends_at - now))
          label, token = read('HGET', labels, ticket) or '', next_token()
          -- The message says for how long: the waiter's own settings may differ from ours (R7).
          local message = 'grant ' .. token .. ' ' .. lease .. ' ' .. ticket .. ' ' .. lock
          reachable[client] = redis.call('PUBLISH', channel .. client, message) > 0 or client == present
        end
        if reachable[client] then
          if ending then redis.call('DEL', lock) end
          hold(owner, seq, token, lease, label)
          removed[#removed + 1] = ticket
          winner = ticket
          last = last and i == #block
          break
        end
        kept[#kept + 1] = ticket
      end
    end
    size = 128
  end
  if #removed > 0 then drop_head(seen, kept, removed, last) end
  if ending and not winner then redis.call('DEL', lock) end
  local stopped = not winner and (seen >= EXAMINED_AT_MOST or #removed >= CLEARED_AT_MOST)
  return stopped and #removed > 0, stopped
end
