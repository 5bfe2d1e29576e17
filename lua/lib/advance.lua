--#include serve
--#include before
--#include format
-- Whose turn it is (R6), and what keeps the queue in order. Included by every script that can find the lock
-- free or free it. Uses: lock, queue, deadlines, frozen.

-- Bounds for one call, so that its time does not grow with the queue. Taking out costs more than passing over.
local PASSED_AT_MOST, CLEARED_AT_MOST, CLEARED_WHEN_LATE = 2000, 128, 16

-- Until when this client lives, in server ms: 0 if it is dead, and negative if no message reaches it.
local function client_state(client)
  local score = tonumber(read('ZSCORE', deadlines, client) or '0')
  return math.abs(score) - now >= 1 and score or 0, score
end

-- Whether the ticket of this place has not left.
local function is_wanted(place)
  return read('ZSCORE', deadlines, before(place, '/'))
end

-- The tickets of the dead places at the head of the queue, up to `most`, and the clients of these that are dead.
local function find_dead_head(most)
  local tickets, clients, states, from, size = {}, {}, {}, 0, 1 -- most often the first one lives
  while from < most do
    for _, place in ipairs(read('LRANGE', queue, from, from + size - 1)) do
      local client = before(place, ':')
      states[client] = states[client] or (client_state(client))
      if states[client] ~= 0 and is_wanted(place) then return tickets, clients end
      tickets[#tickets + 1] = before(place, '/')
      if states[client] == 0 and clients[#clients] ~= client then clients[#clients + 1] = client end
    end
    from, size = from + size, most - 1
  end
  return tickets, clients
end

-- R7: while the lock is free, a bound for the token of the next grant. An older grant that is still on its way to the
-- client does not pass it.
local function free_floor(current)
  return string.format('%d', next_token(current) - 1)
end

-- R6: serves the first live ticket whose client is reachable, in the script that freed the lock. So there is no
-- instant in which a newcomer could overtake (P3). Those that are passed over keep their places. `ending` is the
-- owner whose hold ends; `current` its token; `places` the length of the list.
-- Returns the owner, seq and token of the winner, or nothing; then whether it stopped at its bound, so that a live
-- ticket may wait behind it; how many places are left; and without a winner the owner whose hold the caller has to end.
-- If no place is left, the keys of the queue are gone.
local function advance(places, current, ending)
  -- All keep their places until the freeze is over (lib/freeze.lua).
  if frozen then return nil, nil, nil, false, places, ending end
  local token = next_token(current)
  local noted = tonumber(read('ZSCORE', deadlines, '!skip') or '0')
  -- All were passed over, and one of them may be reachable again. Or the list was made shorter by hand.
  local skip = noted < places and noted or 0
  local states, marks, find = {}, {}, string.find
  -- A client that is passed over gets a negative deadline. If it is heard again, the count of those that are passed over
  -- ends, also if the clock went back and it never looked dead to itself.
  local function mark(client, deadline)
    marks[#marks + 1] = string.format('%d', -deadline)
    marks[#marks + 1] = client
  end
  local client, prefix = '', ':' -- of the place before
  local index, size, at, winner = skip, 2, nil, nil -- the first in line is nearly always served
  while not at and index < places and index < skip + PASSED_AT_MOST do
    local block = read('LRANGE', queue, index, index + size - 1)
    if #block == 0 then break end
    for i = 1, #block do
      local place = block[i]
      -- Many places in a row are of one client, most often. Not by string.sub: it would make a text for each.
      if find(place, prefix, 1, true) ~= 1 then
        client = before(place, ':')
        prefix = client .. ':'
      end
      local state = states[client]
      if not state then
        -- Before any write, and once for each client: all of its places have one format.
        if not string.find(place, PLACE) then refuse_place(place) end
        local score
        state, score = client_state(client)
        states[client] = state
        if state == 0 and score > 0 then mark(client, score) end
      end
      if state > 0 and is_wanted(place) then
        local owner, _, seq, terms, grant_ttl = string.match(place, PLACE)
        if offer(token, owner, client, seq, terms, grant_ttl, state, ending) then
          at, winner = index + i - 1, { owner, seq, token, place }
          break
        end
        -- The hash is its now, until the next one gets it.
        ending = owner
        states[client] = -state
        mark(client, state)
      end
    end
    index, size = index + #block, 500
  end
  local stopped = not at and index < places
  local passed = at or math.min(index, places)
  local dead, dead_clients = {}, {}
  -- A call that has looked at as many as it may is long enough, and another one follows it at once. After more than
  -- half of that it takes out a few.
  if passed > 0 and not stopped then
    dead, dead_clients = find_dead_head(passed - skip > PASSED_AT_MOST / 2 and CLEARED_WHEN_LATE or CLEARED_AT_MOST)
  end
  local cleared = #dead
  local remaining = places - cleared - (at and 1 or 0)
  if remaining == 0 then
    call('DEL', queue, deadlines)
  else
    if #marks > 0 then call('ZADD', deadlines, unpack(marks, 1, math.min(#marks, 4000))) end
    if at then dead[#dead + 1] = string.match(winner[4], '^[^/]*') end
    -- A client whose places were taken has no member any more, so that it hears of it.
    for _, client in ipairs(dead_clients) do dead[#dead + 1] = client end
    if passed - cleared >= WORTH_A_NOTE then
      call('ZADD', deadlines, passed - cleared, '!skip')
    elseif noted > 0 then
      dead[#dead + 1] = '!skip'
    end
    if #dead > 0 then call('ZREM', deadlines, unpack(dead)) end
    if at and at > cleared then
      -- From the nearer end: nothing behind or before it is moved.
      call('LREM', queue, 2 * at > places and -1 or 1, winner[4])
      if cleared > 0 then call('LTRIM', queue, cleared, -1) end
    elseif at or cleared > 0 then
      call('LTRIM', queue, cleared + (at and 1 or 0), -1)
    end
  end
  if not at then return nil, nil, nil, stopped, remaining, ending end
  return winner[1], winner[2], token, false, remaining
end

-- Passes a free lock on, or one that `ending` gives up: without a winner it is free then. Returns 1 if a live ticket may
-- wait behind those that one call looks at, else 0.
local function pass_on(places, current, ending)
  local winner, stopped, _ = nil, false, nil
  if places > 0 then winner, _, _, stopped, _, ending = advance(places, current, ending) end
  if ending and not winner then call('DEL', lock) end
  return stopped and '1' or '0'
end
