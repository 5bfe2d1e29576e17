#!lua flags=no-writes
-- inspect: returns the holders of a name, and the queue. It changes nothing.
--
-- KEYS[1] lock       hash     owner -> a record, and !used: see lib/fields.lua
-- KEYS[2] queue      list     places, oldest first
-- KEYS[3] deadlines  zset     client -> server ms at which it is dead; ticket -> inf
-- KEYS[4] limit      string   the limit for all clients, if one is set
-- KEYS[5] boot       string   the record of boot.lua; only with strict_restart
-- ARGV[1] request    growing number, echoed in the reply
-- ARGV[2] most       how many holders and waiters to name
--
-- Returns a list: shared, request, server time (s and us), weight held, limit for all clients or -1, holders, living
-- waiters, freeze left ms or -1, how many holders it names, for each of these: owner, holds, token, lease left ms,
-- weight, limit of its client, label; then for each named waiter: ticket, ms until its client is dead, weight, limit,
-- label. It names the first ones. A second run returns the same, later.
local lock, queue, deadlines, limit, boot = unpack(KEYS)
local request, most = unpack(ARGV)
local owner = ''
local settings = ''

--#include room
--#include place
--#include before
--#paste freeze

local holders, used = {}, 0
local fields = read('HGETALL', lock)
for i = 1, #fields, 2 do
  local ends, holds, _, token, terms, weight = string.match(fields[i + 1], RECORD)
  if holds and tonumber(ends) > now then
    used = used + weight
    local its_limit, label = string.match(terms, '^%d+,(%d+),%d+/(.*)$')
    holders[#holders + 1] = { tonumber(token), fields[i], holds, token, math.floor(ends - now), weight, its_limit, label }
  end
end
table.sort(holders, function(one, other) return one[1] < other[1] end)
most = tonumber(most)
local reply = { 'shared', request, clock[1], clock[2], used, room.set_limit or -1, #holders, 0, frozen or '-1', math.min(most, #holders) }
for i = 1, math.min(most, #holders) do
  for j = 2, 8 do reply[#reply + 1] = holders[i][j] end
end

-- As many places as one call of another script reads. Later ones count as living if they have a ticket.
local places = read('LRANGE', queue, 0, 255)
local tickets, clients = {}, {}
for i, place in ipairs(places) do
  if not string.find(place, PLACE) then refuse_place(place) end
  tickets[i], clients[i] = before(place, '/'), before(place, ':')
end
local placed = #places > 0 and read('ZMSCORE', deadlines, unpack(tickets)) or {}
local scores = #places > 0 and read('ZMSCORE', deadlines, '!forgiven', '!spent', unpack(clients)) or {}
local forgiven, spent, living, dead = tonumber(scores[1] or '0'), tonumber(scores[2] or '0'), 0, 0
for i, place in ipairs(places) do
  local score = scores[i + 2]
  local deadline = math.abs(tonumber(score or '0'))
  local left = (score and deadline >= spent and math.max(deadline, forgiven) or deadline) - now
  if placed[i] and left < 1 then
    dead = dead + 1
  elseif placed[i] then
    living = living + 1
    if living <= most then
      local _, _, _, _, weight, its_limit = string.match(place, PLACE)
      local entry = { tickets[i], math.floor(left), weight, its_limit, string.match(place, '/%d+,%d+,%d+/(.*)$') }
      for j = 1, 5 do reply[#reply + 1] = entry[j] end
    end
  end
end
reply[8] = #places < 256 and living or math.max(living, read('ZCOUNT', deadlines, 'inf', 'inf') - dead)
return reply
