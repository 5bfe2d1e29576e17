--#include place
--#include read
--#include before
--#include format
--#include silence
-- Reads the queue: which of its places wait. Uses: lock, queue, deadlines, settings, caller.
-- `caller` is the client that runs the script, or one of its owners. It reads the reply, so it counts as reachable even
-- while its subscription is down.

-- Bounds for one call, so that its time does not grow with the queue. `WORK_AT_MOST` counts 1 for a place, `CLIENT` to
-- learn about a client, and `TICKET` to look up a ticket. A call reads `BLOCK` places at once, and takes out at most
-- that many dead ones. From `WORTH_A_NOTE` passed-over places on, `!skip` lets the next call skip them.
local WORK_AT_MOST, CLIENT, TICKET, BLOCK, WORTH_A_NOTE = 1200, 10, 2, 50, 32

-- Records until when these clients live, in server ms: 0 if dead, negative if no message reaches them.
local function learn(clients, found)
  local scores, itself, lives = read('ZMSCORE', deadlines, unpack(clients)), string.match(caller, '^[^:]*'), found.lives
  local asked, channels = {}, {}
  for i, client in ipairs(clients) do
    local until_ms = math.abs(tonumber(scores[i] or '0'))
    if scores[i] and until_ms - now < 1 then
      if not found.forgiven then found.forgiven, found.spent, found.is_new = find_silence() end
      until_ms = lives_until(until_ms, found.forgiven, found.spent)
    end
    lives[client] = until_ms - now >= 1 and until_ms or 0
    if lives[client] > 0 and client ~= itself then
      asked[#asked + 1], channels[#channels + 1] = client, channel .. client
    end
  end
  -- In one command, and before this script writes or publishes anything: a server that was the primary until a moment
  -- ago repeats this script's messages to its own subscribers, and they would take them for grants (P1).
  -- pcall: without the right to ask, all count as reachable, and an unreachable client costs the others a grant.
  local counts = #asked > 0 and redis.pcall('PUBSUB', 'NUMSUB', unpack(channels)) or {}
  for i, client in ipairs(asked) do
    if counts[2 * i] == 0 then lives[client] = -lives[client] end
  end
  for i, client in ipairs(clients) do
    local score = tonumber(scores[i] or '1')
    -- Unless it has a mark already.
    if lives[client] <= 0 and score > 0 then
      found.marks[#found.marks + 1], found.marks[#found.marks + 2] = string.format('%d', -math.max(1, score)), client
    end
  end
  found.work = found.work + CLIENT * #clients
end

-- Reads a part of the queue. Returns the places with their clients, and which of them wait: the tickets of living
-- clients that have not left.
local function examine(from, size, found)
  local places, clients, unknown = read('LRANGE', queue, from, from + size - 1), {}, {}
  local client, prefix, find, lives = '', ':', string.find, found.lives -- client of the place before: many in a row have the same
  for i = 1, #places do
    local place = places[i]
    if find(place, prefix, 1, true) ~= 1 then
      client = before(place, ':')
      prefix = client .. ':'
      if not lives[client] then
        -- Once per client: all of its places have one format.
        --#paste known_place
        lives[client] = 0
        unknown[#unknown + 1] = client
      end
    end
    clients[i] = client
  end
  if #unknown > 0 then learn(unknown, found) end
  local tickets, of, waits = {}, {}, {}
  for i = 1, #places do
    if lives[clients[i]] > 0 then tickets[#tickets + 1], of[#of + 1] = before(places[i], '/'), i end
  end
  for i, score in ipairs(#tickets > 0 and read('ZMSCORE', deadlines, unpack(tickets)) or {}) do waits[of[i]] = score end
  found.work = found.work + #places + TICKET * #tickets
  return places, clients, waits, #tickets > 0
end
