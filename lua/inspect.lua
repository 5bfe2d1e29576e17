#!lua flags=allow-oom
-- inspect: tells who holds the lock and who waits. It changes nothing.
--
-- KEYS[1] lock       hash     owner -> holds, and !attempt, !token, !label
-- KEYS[2] queue      list     entries, ticket/label, oldest first
-- KEYS[3] deadlines  zset     ticket -> server ms at which it is dead
-- ARGV[1] request    growing number, returned as it is
-- ARGV[2] most       entries of the queue to look at
--
-- Returns inspected, request, now, owner or '', holds, token or '', label, lease left ms or -1,
-- living and expired waiters together, then for each living one: ticket, ms until its deadline, label.
--
-- A second run tells the same, later.
local lock, queue, deadlines = KEYS[1], KEYS[2], KEYS[3]
local request, most = ARGV[1], tonumber(ARGV[2])

--#include clock

local holds, _, token, owner, label = read_lock()
local reply = {
  'inspected', request, now, owner or '', tonumber(holds) or 0, token or '', label or '',
  call('PTTL', lock), read('ZCARD', deadlines),
}
local entries = most > 0 and read('LRANGE', queue, 0, most - 1) or {}
if #entries == 0 then return reply end
-- An entry is split here and not by `ticket_of`, which would bring in all that serving a waiter needs.
local tickets, labels = {}, {}
for i, entry in ipairs(entries) do tickets[i], labels[i] = string.match(entry, '^([^/]*)/?(.*)$') end
for i, ends_at in ipairs(read('ZMSCORE', deadlines, unpack(tickets))) do
  -- False for a ticket that has left.
  local remaining = ends_at and ends_at - now or 0
  if remaining > 0 then
    reply[#reply + 1] = tickets[i]
    reply[#reply + 1] = remaining
    reply[#reply + 1] = labels[i]
  end
end
return reply
