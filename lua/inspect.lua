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
local is_all = #places < looked_at
local lives, of_living, of_dead, count = {}, {}, {}, 0
local find, sub = string.find, string.sub
for _, place in ipairs(places) do
  -- Not `before`: each call counts here.
  local client = sub(place, 1, (find(place, ':', 1, true) or 0) - 1)
  local left = lives[client]
  if not left then
    left = math.abs(tonumber(read('ZSCORE', deadlines, client) or 0)) - now
    lives[client] = left
  end
  if left >= 1 then
    count = count + 1
    of_living[count] = place
  else
    of_dead[#of_dead + 1] = place
  end
end

-- Which of the tickets of these places, up to `most` from `from` on, have not left; and how many were looked at.
local function find_tickets(of, from, most)
  local tickets = {}
  for i = from, math.min(#of, from + most - 1) do tickets[#tickets + 1] = before(of[i], '/') end
  return #tickets > 0 and read('ZMSCORE', deadlines, unpack(tickets)) or {}, tickets
end

most = tonumber(most)
local living, from = 0, 1
-- With more places behind these all tickets are counted below, so that only those to be named are looked for here. That
-- is what costs: a ticket takes as long as reading its place and its client twice.
while from <= count and (is_all or living < most) do
  local scores, tickets = find_tickets(of_living, from, is_all and count or most)
  for i, ticket in ipairs(tickets) do
    if scores[i] then
      living = living + 1
      if living <= most then
        local place, n = of_living[from + i - 1], 3 * living + 11
        reply[n], reply[n + 1], reply[n + 2] = ticket, lives[before(ticket, ':')], string.match(place, '^%d*/(.*)$', #ticket + 2) or ''
      end
    end
  end
  from = from + #tickets
end
if not is_all then
  local dead = 0
  for _, score in ipairs(find_tickets(of_dead, 1, #of_dead)) do
    if score then dead = dead + 1 end
  end
  living = math.max(living, all_tickets - dead)
end
reply[12] = living
return reply
