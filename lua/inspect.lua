#!lua flags=allow-oom
-- inspect: tells who holds the lock and who waits. It changes nothing.
--
-- KEYS[1] lock       hash     owner -> holds, and !attempt, !token, !label
-- KEYS[2] queue      list     places, ticket/label, oldest first
-- KEYS[3] deadlines  zset     ticket -> server ms at which it is dead
-- ARGV[1] request    growing number, echoed
-- ARGV[2] most       places of the queue to look at
--
-- Returns inspected, request, now, owner or '', holds, token or '', label, lease left ms or -1,
-- living and expired waiters together, then for each living one: ticket, ms until its deadline, label.
--
-- A second run tells the same, later.
local lock, queue, deadlines = KEYS[1], KEYS[2], KEYS[3]
local request, most = ARGV[1], tonumber(ARGV[2])

--#include base
--#include clock
--#include place
--#include look

local fields = read('HGETALL', lock)
local reserved, owner, holds = {}, '', 0
for i = 1, #fields, 2 do
  if string.sub(fields[i], 1, 1) == '!' then
    reserved[fields[i]] = fields[i + 1]
  else
    owner, holds = fields[i], tonumber(fields[i + 1]) or 0
  end
end
local reply = {
  'inspected', request, now, owner, holds, reserved['!token'] or '', reserved['!label'] or '',
  call('PTTL', lock), read('ZCARD', deadlines),
}
local places = most > 0 and read('LRANGE', queue, 0, most - 1) or {}
if #places == 0 then return reply end
local tickets, ends = look(places)
for i, ticket in ipairs(tickets) do
  local ends_at = tonumber(ends[i])
  if ends_at and ends_at > now then
    reply[#reply + 1] = ticket
    reply[#reply + 1] = ends_at - now
    reply[#reply + 1] = string.sub(places[i], #ticket + 2)
  end
end
return reply
