--#include serve
--#include before
--#include format
--#include silence
-- Whose turn it is (R6), and what keeps the queue in order. Included by every script that can find the lock
-- free or free it. Uses: lock, queue, deadlines, caller, frozen.
-- `caller` is the client that runs the script, or one of its owners. It reads the reply, so it counts as reachable even
-- while its subscription is down.

-- Bounds for one call, so that its time does not grow with the queue. A client costs more than a place. From so many
-- passed-over places on `!skip` notes that they need not be looked at again.
local PASSED_AT_MOST, CLIENTS_AT_MOST, BLOCK, WORTH_A_NOTE = 2000, 200, 100, 32

-- Learns of these clients until when they live, in server ms: 0 if dead, and negative if no message reaches them.
local function learn(clients, found)
  local scores, asked, itself = read('ZMSCORE', deadlines, unpack(clients)), {}, string.match(caller, '^[^:]*')
  local channels = {}
  for i, client in ipairs(clients) do
    local deadline = math.abs(tonumber(scores[i] or '0'))
    local until_ms = deadline
    if scores[i] and deadline - now < 1 then
      if not found.forgiven then found.forgiven, found.is_new = find_silence() end
      until_ms = found.forgiven
    end
    found.lives[client] = until_ms - now >= 1 and until_ms or 0
    found.marks[#found.marks + 1] = { client, string.format('%d', -math.max(1, deadline)) }
    if found.lives[client] > 0 and client ~= itself then
      asked[#asked + 1], channels[#channels + 1] = client, channel .. client
    end
  end
  -- At once, as in `is_reachable`.
  local counts = #asked > 0 and redis.pcall('PUBSUB', 'NUMSUB', unpack(channels)) or {}
  for i, client in ipairs(asked) do
    if counts[2 * i] == 0 then found.lives[client] = -found.lives[client] end
  end
  found.clients = found.clients + #clients
end

-- Reads a part of the queue. Returns the places with ticket and client, and whether the ticket has not left.
local function examine(from, size, found)
  local places, tickets, clients, unknown = read('LRANGE', queue, from, from + size - 1), {}, {}, {}
  local client, prefix, find = '', ':', string.find -- of the place before: many in a row are of one client, most often
  for i, place in ipairs(places) do
    if find(place, prefix, 1, true) ~= 1 then
      client = before(place, ':')
      prefix = client .. ':'
      if not found.lives[client] then
        -- Once for each client: all of its places have one format.
        if not find(place, PLACE) then refuse_place(place) end
        found.lives[client] = 0
        unknown[#unknown + 1] = client
      end
    end
    clients[i], tickets[i] = client, before(place, '/')
  end
  if #unknown > 0 then learn(unknown, found) end
  for _, client_of_place in ipairs(clients) do
    -- Of the others it does not matter which tickets have left.
    if found.lives[client_of_place] > 0 then return places, tickets, clients, read('ZMSCORE', deadlines, unpack(tickets)) end
  end
  return places, tickets, clients
end

-- R6: finds the first live ticket whose client is reachable. Writes nothing, and refuses what it cannot read. `current` is the
-- token of the hold that ends; `heard` a client that is about to be heard. `more`: it stopped at its bound, so that a live
-- ticket may wait behind it. If frozen, all keep their places until that is over (lib/freeze.lua).
local function look(places, current, heard)
  local found = { token = next_token(current), places = places, passed = 0, dead = {}, lives = {}, marks = {}, clients = 0, more = false }
  local noted = not frozen and places > 0 and tonumber(read('ZSCORE', deadlines, '!skip') or '0') or 0
  found.is_noted = noted > 0
  if frozen then return found end
  if heard then
    found.lives[heard] = now + waiter_ttl
    -- Its places may be among those that were counted.
    local score = noted > 0 and read('ZSCORE', deadlines, heard)
    if score and tonumber(score) <= now then noted = 0 end
  end
  -- All were passed over, and one of them may be reachable again. Or the list was made shorter by hand.
  local skip = noted < places and noted or 0
  local from, size, is_head = 0, skip > 0 and math.min(skip, BLOCK) or 2, true -- the first in line is nearly always served
  while not found.winner and from < places and from < skip + PASSED_AT_MOST and found.clients < CLIENTS_AT_MOST do
    local block, tickets, clients, scores = examine(from, size, found)
    if #block == 0 then break end
    for i, place in ipairs(block) do
      local until_ms = found.lives[clients[i]]
      if until_ms > 0 and not scores[i] then until_ms = 0 end
      if until_ms > 0 and from >= skip then
        found.winner, found.ticket, found.passed = place, tickets[i], from + i - 1
        break
      end
      -- Dead places at the head go.
      is_head = is_head and until_ms == 0 and #found.dead < BLOCK
      if is_head then found.dead[#found.dead + 1] = tickets[i] end
    end
    from, size = math.max(from + #block, skip), BLOCK
    if not found.winner then found.passed = math.min(from, places) end
  end
  found.more = not found.winner and found.passed < places
  return found
end

-- Gives the lock to the winner that was found, takes out dead places at the head, and notes how many need not be looked at
-- again: those that are passed over keep their places. Returns the owner and seq of the winner, or nothing. `ending` is
-- the owner whose hold ends; without a winner the caller has to end it. `lease`: of a caller that is the winner itself,
-- and hears of it by the reply. `found.places` is then what is left; with 0 the keys of the queue are gone.
local function serve(found, ending, lease)
  local places, winner, dead, cleared = found.places, found.winner, found.dead, #found.dead
  if found.is_new then forgive(found.forgiven) end
  local owner, client, seq, terms, grant_ttl
  if winner then
    owner, client, seq, terms, grant_ttl = string.match(winner, PLACE)
    if lease then
      hold(owner, seq, found.token, lease, terms, ending)
    else
      hand_over(found.token, owner, client, seq, terms, grant_ttl, found.lives[client], ending)
    end
    dead[cleared + 1] = found.ticket
  end
  found.places = places - #dead
  if places > 0 and found.places == 0 then
    call('UNLINK', queue, deadlines)
  elseif places > 0 then
    if found.passed - cleared >= WORTH_A_NOTE then
      -- One of these clients that is heard again ends the note: its deadline is negative, or over.
      local marks = { found.passed - cleared, '!skip' }
      for _, mark in ipairs(found.marks) do
        if found.lives[mark[1]] <= 0 then marks[#marks + 1], marks[#marks + 2] = mark[2], mark[1] end
      end
      call('ZADD', deadlines, unpack(marks))
    elseif found.is_noted then
      dead[#dead + 1] = '!skip'
    end
    if #dead > 0 then call('ZREM', deadlines, unpack(dead)) end
    if winner and found.passed > cleared then
      -- From the nearer end: nothing behind or before it is moved.
      call('LREM', queue, 2 * found.passed > places and -1 or 1, winner)
      if cleared > 0 then call('LTRIM', queue, cleared, -1) end
    elseif places > found.places then
      call('LTRIM', queue, places - found.places, -1)
    end
  end
  return owner, seq
end

-- Passes a free lock on, or one that `ending` gives up: without a winner it is free then. Returns 1 if a live ticket may
-- wait behind those that one call looks at, else 0.
local function pass_on(found, ending)
  if not serve(found, ending) and ending then call('DEL', lock) end
  return found.more and '1' or '0'
end
