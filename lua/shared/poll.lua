#!lua flags=allow-oom
-- poll: a client that waits for a name is heard; whoever there is room for comes in; returns which of the given tickets hold the name,
-- and which have no place (R8). Its cost does not depend on the number of waiters, nor of holders whose leases go on.
--
-- KEYS[1] lock       hash     owner -> a record, and !used: see lib/fields.lua
-- KEYS[2] queue      list     places, oldest first
-- KEYS[3] deadlines  zset     client -> server ms at which it is dead; ticket -> inf
-- KEYS[4] tokens     string   the last token given
-- KEYS[5] limit      string   the limit that is set for all clients, if there is one
-- KEYS[6] boot       string   when it was started, see boot.lua; only with strict_restart
-- ARGV[1] request    growing number, echoed in the reply
-- ARGV[2] caller     the client that polls
-- ARGV[3] waits      1, or 0 for a client that waits for nothing and only serves the queue; 2: and wants to know all that it holds
-- ARGV[4] settings   waiter_ttl (ms that a client lives without being heard), max_waiters, token_ttl (ms), channel prefix
-- ARGV[5...] tickets to look for
--
-- Returns one text: shared, request, server time (s and us), more (1 if another call may serve more of the queue), known (1: the client
-- had not been given up as dead), places, first (1: the client was first in line before this call), floor, ms until the first
-- lease may end or negative, ms of the freeze or negative, and for each ticket: + if it waits, - if it has no place, or
-- owner, attempt, token, lease left ms if it holds the name. Then the same four for each hold of the client, if asked for.
--
-- Keeps: no ticket gets a place that it did not have. A second run answers the same but for `known`, and extends the same deadlines.
local lock, queue, deadlines, tokens, limit, boot = unpack(KEYS)
local request, caller, waits, settings = unpack(ARGV)
local owner = ''

--#include hear
--#include lease
--#paste freeze
--#include room
--#include advance

local places, first, known = read('LLEN', queue), '0', '0'
local scores = read('ZMSCORE', deadlines, caller, unpack(ARGV, 5))
-- All that may be refused comes before the first write.
local found = look(places, waits == '1' and places > 0 and caller, room)

-- The holds of this client, of which tickets ask for some.
local function hold(owner, record)
  local ends, _, attempt, its_token = string.match(record or '', RECORD)
  if not attempt or tonumber(ends) <= now then return nil end
  return owner .. ' ' .. attempt .. ' ' .. its_token .. ' ' .. string.format('%d', ends - now), attempt
end

local owners, holds = {}, {}
for i = 5, #ARGV do owners[i - 4] = string.match(ARGV[i], '^(.*):%d*$') end
-- A ticket that waits has no hold, but for one of an owner that was given up.
for i, record in ipairs(#owners > 0 and call('HMGET', lock, unpack(owners)) or {}) do
  local text, attempt = hold(owners[i], record)
  if text and owners[i] .. ':' .. attempt == ARGV[i + 4] then holds[i] = text end
end
local ours = {}
if waits == '2' then
  local all = call('HGETALL', lock)
  for i = 1, #all, 2 do
    if string.find(all[i], caller .. ':', 1, true) == 1 then
      local text = hold(all[i], all[i + 1])
      if text then ours[#ours + 1] = ' ' .. text end
    end
  end
end

if waits == '1' and places > 0 then
  -- R8: the client that is first in line polls first when a lease ends.
  if string.find(call('LINDEX', queue, '0'), caller .. ':', 1, true) == 1 then first = '1' end
  if hear(caller, scores[1], false) then known = '1' end
  keep_queue(scores[1])
elseif places == 0 then
  -- The list was deleted by hand, or never was: no ticket has a place.
  scores = {}
  call('UNLINK', deadlines)
end
-- R7: every later grant is above it.
local floor = string.format('%d', token + #found.winners - 1)
local more = serve(found, room)
local answer = ''
for i = 5, #ARGV do
  local state = holds[i - 4] or scores[i - 3] and '+' or '-'
  for _, winner in ipairs(found.winners) do
    local owner, seq = winner.owner, winner.seq
    if owner .. ':' .. seq == ARGV[i] then state = owner .. ' ' .. seq .. ' ' .. winner.token .. ' ' .. winner.lease end
  end
  answer = answer .. ' ' .. state
end
return 'shared ' .. echo .. ' ' .. more .. ' ' .. known .. ' ' .. found.places .. ' ' .. first .. ' ' .. floor .. ' ' .. room_in(room) .. ' ' .. (frozen or '-1') .. answer .. table.concat(ours)
