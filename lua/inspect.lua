#!lua flags=no-writes
-- inspect: tells who holds the lock and who waits. It changes nothing.
--
-- KEYS[1] lock       hash     owner -> holds, and !grant
-- KEYS[2] queue      list     places, oldest first
-- KEYS[3] deadlines  zset     client -> server ms at which it is dead; ticket -> inf
-- KEYS[4] boot       string   when it was started, see boot.lua; only with strict_restart
-- ARGV[1] request    growing number, returned as it is
-- ARGV[2] most       waiters to name
--
-- Returns a list: inspected, request, server time (s and us), owner or '', holds, token or 0, held since (s and us, or 0),
-- label, lease left ms or -1, living waiters, freeze left ms or -1, then for each named one: ticket, ms until its client
-- is dead, label.
-- It looks at 512 places where a client may be dead; those behind them count as living if they have a ticket.
--
-- A second run tells the same, later.
local lock, queue, deadlines, boot = unpack(KEYS)
local request, most = unpack(ARGV)

--#include millis
--#include holder
--#include before

local frozen
if boot then
  --#include freeze
end

local owner, _, token, holds, grant = read_holder()
local s, us, label = string.match(token and grant or '0 0 0 0 0/', '^%d+ %d+ (%d+) (%d+) %d+/(.*)$')
local reply = { 'inspected', request, clock[1], clock[2], owner or '', tonumber(holds or '0'), token or '0', s, us, label, call('PTTL', lock), 0, frozen or '-1' }
local all_places, all_tickets = read('LLEN', queue), read('ZCOUNT', deadlines, 'inf', 'inf')
-- All places count, unless a ticket has gone or a client is dead (or passed over: `!skip` counts here too).
local are_exact = all_tickets == all_places and call('ZCOUNT', deadlines, -now, now) == 0
-- At least one: LRANGE to -1 would be all of it.
local looked_at = are_exact and math.max(1, tonumber(most)) or 512
local places = read('LRANGE', queue, 0, looked_at - 1)
local tickets, clients, lives, living, tickets_seen = {}, {}, {}, 0, 0
for i, place in ipairs(places) do
  clients[i], tickets[i] = before(place, ':'), before(place, '/')
end
local scores = #places > 0 and read('ZMSCORE', deadlines, unpack(tickets)) or {}
for i = 1, #places do
  local client = clients[i]
  if lives[client] == nil then
    lives[client] = math.abs(tonumber(read('ZSCORE', deadlines, client) or 0)) - now
  end
end
for i = 1, #places do
  if scores[i] then tickets_seen = tickets_seen + 1 end
  if scores[i] and lives[clients[i]] >= 1 then
    living = living + 1
    if living <= tonumber(most) then
      local n = #reply
      reply[n + 1], reply[n + 2], reply[n + 3] = tickets[i], lives[clients[i]], string.match(places[i], '^[^/]*/%d*/(.*)$') or ''
    end
  end
end
if #places == looked_at then living = living + math.max(0, all_tickets - tickets_seen) end
reply[12] = living
return reply
