#!lua flags=allow-oom
-- poll: keeps a waiting client alive, lets in waiters as far as there is room, and returns which of the given tickets
-- hold the name and which have no place (R8). Its cost does not depend on the number of waiters, nor of holders whose
-- leases go on.
--
-- KEYS[1] lock       hash     owner -> a record, and !used: see lib/fields.lua
-- KEYS[2] queue      list     places, oldest first
-- KEYS[3] deadlines  zset     client -> server ms at which it is dead; ticket -> inf
-- KEYS[4] tokens     string   the last token
-- KEYS[5] limit      string   the limit for all clients, if one is set
-- KEYS[6] boot       string   the record of boot.lua; only with strict_restart
-- ARGV[1] request    growing number, echoed in the reply
-- ARGV[2] caller     the client that polls
-- ARGV[3] waits      1; 0: the client waits for nothing and only serves the queue; 2: like 0, and it asks for its holds
-- ARGV[4] settings   waiter_ttl (ms that a silent client stays alive), max_waiters, token_ttl (ms), channel prefix
-- ARGV[5...] tickets to look for
--
-- Returns one text: shared, request, server time (s and us), more (1: another call may serve more of the queue), known
-- (1: the client still counted as alive), places, first (1: the client was first in line before this call), floor, ms
-- until the first lease may end or negative, ms of the freeze or negative, and for each ticket: + if it waits, - if it
-- has no place, or owner, attempt, token, lease left ms if it holds the name. If asked for, the same four follow for
-- each hold of the client.
--
-- Keeps: it creates no place. A second run gives the same answer but for `known`, and extends the same deadlines.
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
-- Everything that Redis or `look` may refuse comes before the first write.
local found = look(places, waits == '1' and places > 0 and caller, room)

-- The text of a hold whose lease has not ended, and its attempt.
local function hold(owner, record)
  local ends, _, attempt, its_token = string.match(record or '', RECORD)
  if not attempt or tonumber(ends) <= now then return nil end
  return owner .. ' ' .. attempt .. ' ' .. its_token .. ' ' .. string.format('%d', ends - now), attempt
end

local owners, holds = {}, {}
for i = 5, #ARGV do owners[i - 4] = string.match(ARGV[i], '^(.*):%d*$') end
-- A waiting ticket holds nothing, but its owner may have an earlier hold that it gave up.
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
  -- R8: see lua/poll.lua.
  if string.find(call('LINDEX', queue, '0'), caller .. ':', 1, true) == 1 then first = '1' end
  if hear(caller, scores[1], false) then known = '1' end
  keep_queue(scores[1])
elseif places == 0 then
  -- See lua/poll.lua.
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
