#!lua flags=no-writes
-- inspect: tells who holds the lock and who waits. It changes nothing.
--
-- KEYS[1] lock       hash     owner -> holds, and !grant
-- KEYS[2] queue      list     places, oldest first
-- KEYS[3] deadlines  zset     client -> server ms at which it is dead; ticket -> inf
-- ARGV[1] request    growing number, returned as it is
-- ARGV[2] most       waiters to name
--
-- Returns a list: inspected, request, server time (s and us), owner or '', holds, token or 0, held since (s and us, or 0),
-- label, lease left ms or -1, living waiters, then for each named one: ticket, ms until its client is dead, label.
-- It looks at so many places; those behind them count as living if they have a ticket.
--
-- A second run tells the same, later.
local lock, queue, deadlines = unpack(KEYS)
local request, most = unpack(ARGV)
local LOOKED_AT_MOST = 512

--#include millis
--#include holder

local owner, _, token, holds, grant = read_holder()
local s, us, label = string.match(token and grant or '0 0 0 0 0/', '^%d+ %d+ (%d+) (%d+) %d+/(.*)$')
local reply = { 'inspected', request, clock[1], clock[2], owner or '', tonumber(holds or '0'), token or '0', s, us, label, call('PTTL', lock), 0 }
read('ZCARD', deadlines)
local places = read('LRANGE', queue, 0, LOOKED_AT_MOST - 1)
local tickets, clients, labels, lives, living, with_ticket = {}, {}, {}, {}, 0, 0
for i, place in ipairs(places) do
  tickets[i], clients[i], labels[i] = string.match(place, '^(([^:/]+):%d+:%d+)/%d+/(.*)$')
  tickets[i] = tickets[i] or ''
end
local scores = #places > 0 and read('ZMSCORE', deadlines, unpack(tickets)) or {}
for i = 1, #places do
  local client = clients[i]
  if client and lives[client] == nil then
    lives[client] = math.abs(tonumber(read('ZSCORE', deadlines, client) or 0)) - now
  end
end
for i = 1, #places do
  if scores[i] then with_ticket = with_ticket + 1 end
  if scores[i] and lives[clients[i]] >= 1 then
    living = living + 1
    if living <= tonumber(most) then
      local n = #reply
      reply[n + 1], reply[n + 2], reply[n + 3] = tickets[i], lives[clients[i]], labels[i]
    end
  end
end
if #places == LOOKED_AT_MOST then
  living = living + math.max(0, read('ZCOUNT', deadlines, 'inf', 'inf') - with_ticket)
end
reply[12] = living
return reply
