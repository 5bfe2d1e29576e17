#!lua flags=allow-oom
-- acquire: one request for a share of a name, by one attempt (owner, seq). If the owner already holds it: one more
-- hold.
--
-- KEYS[1] lock       hash     owner -> a record, and !used: see lib/fields.lua
-- KEYS[2] queue      list     places, oldest first
-- KEYS[3] deadlines  zset     client -> server ms at which it is dead; ticket -> inf
-- KEYS[4] tokens     string   the last token
-- KEYS[5] tombstone  string   the seq up to which this owner has left (R3)
-- KEYS[6] limit      string   the limit for all clients, if one is set
-- KEYS[7] boot       string   the record of boot.lua; only with strict_restart
-- ARGV[1] request    growing number, echoed in the reply
-- ARGV[2] not_after  server us after which the request is refused (R2)
-- ARGV[3] owner      <client>:<n>
-- ARGV[4] seq        of the attempt; a retry repeats it (R1)
-- ARGV[5] lease      ms
-- ARGV[6] terms      <weight>,<limit of the client>,<ms that a grant lives unconfirmed>/<label>
-- ARGV[7] settings   waiter_ttl (ms that a silent client stays alive), max_waiters, token_ttl (ms), channel prefix
-- ARGV[8] mode       absent: join the queue if there is no room; 0: do not wait; n:token: one more hold of the same
--                    weight, for an owner that has n under this token
--
-- Returns one text: status, request, server time (s and us), and
--   held, token, holds, lease left ms
--   queued, floor (every later grant has a token above it), ms until the first lease or the freeze ends, or negative,
--                      more, known (1: the client still counted as alive)
--   busy, more         no room, and the caller does not wait, or must ask again (more is 1)
--   full, waiters, more   max_waiters are queued
--   heavy, limit       its weight is above this limit, and it has no place
--   lost               one more, but the owner does not hold under that token
--   late | left | stale  not_after has passed | a tombstone | the script has served a later attempt of the owner
-- `more` is 1 if another call may serve more of the queue: poll, or ask again, at once.
--
-- Keeps: all weights together are at most the limit that each holder came in under; no newcomer passes a live ticket
-- (P3); a second run gets the same answer and changes at most the lease (R1).
local lock, queue, deadlines, tokens, tombstone, limit, boot = unpack(KEYS)
local request, not_after, owner, seq, lease, terms, settings, mode = unpack(ARGV)
local waits = not mode
local caller = owner

--#include clock

-- R2: see lua/acquire.lua.
if #not_after < 16 or now_us > not_after then return 'late ' .. echo end
--#paste freeze
--#include fields

-- The usual case in a straight line, see lua/acquire.lua: there is room, the queue is empty (P3), and this owner has
-- neither a hold nor a tombstone.
local keys = (frozen or mode and mode ~= '0') and 3 or call('EXISTS', lock, queue, tombstone, limit)
if keys < 3 then
  local weight, own_limit = string.match(terms, '^(%d+),(%d+),')
  -- The weight taken with this share, and the number of holders. Texts while the hash is new: making a text of a number
  -- is expensive.
  local others, set, used, holders, soon, current = keys, nil, weight, '1', nil, nil
  if keys > 0 then
    local fields = redis.pcall('HMGET', lock, owner, '!used')
    if fields[2] and not fields[1] then
      others, used, holders, soon, current = keys - 1, string.match(fields[2], SUMMARY)
      if used then used, holders = used + weight, holders + 1 end
    end
  end
  if others == 1 then
    --#paste usual_limit
  end
  -- Otherwise there is a queue, a tombstone, a foreign hash, or a hold of this owner.
  local is_usual = used and (others == 0 or others == 1 and set)
  if is_usual and tonumber(used) <= tonumber(set or own_limit) and (not current or holders <= 1024) then
    --#paste token
    --#paste remember
    local ends = string.format('%d', now_us / 1000 + lease)
    local summary = used .. ' ' .. holders .. ' ' .. (soon and soon < ends and soon or ends) .. ' ' .. token
    call('HSET', lock, '!used', summary, owner, ends .. ' 1 ' .. seq .. ' ' .. token .. ' ' .. terms)
    if current then call('PEXPIRE', lock, lease, 'GT') else call('PEXPIRE', lock, lease) end
    return 'held ' .. echo .. ' ' .. token .. ' 1 ' .. lease
  end
end

local client, ticket = string.match(owner, '^[^:]*'), owner .. ':' .. seq
--#include room
--#include place
--#include join
--#include advance

-- R3: see lua/acquire.lua.
local left_up_to = read('GET', tombstone)
if left_up_to and tonumber(left_up_to) >= tonumber(seq) then return 'left ' .. echo end
local ends, holds, attempt, its_token, its_terms, its_weight = string.match(room.record, RECORD)
-- An ended lease is not a hold, even if no script has taken it out yet.
local is_held = holds and tonumber(ends) > now
local last, this = tonumber(attempt or '0'), tonumber(seq)
local weight, own_limit = string.match(terms, '^(%d+),(%d+),')
weight = tonumber(weight)

-- R5: see lua/acquire.lua.
local function held(count)
  local longer = math.max(tonumber(ends), math.floor(now) + lease)
  if longer > tonumber(ends) or last ~= this then
    call('HSET', lock, owner, string.format('%d', longer) .. ' ' .. count .. ' ' .. seq .. ' ' .. its_token .. ' ' .. its_terms)
  end
  -- For a retry too: Redis may have refused the earlier request between these two.
  local left = longer - math.floor(now)
  if call('PTTL', lock) < left then call('PEXPIRE', lock, string.format('%d', left)) end
  return 'held ' .. echo .. ' ' .. its_token .. ' ' .. count .. ' ' .. string.format('%d', left)
end

local count_of_hold, token_of_hold = string.match(mode or '', '^(%d+):(.*)$')
if count_of_hold then
  if not is_held or its_token ~= token_of_hold then return 'lost ' .. echo end
  if last > this then return 'stale ' .. echo end
  -- R1: see lua/acquire.lua.
  return held(last == this and holds or string.format('%d', count_of_hold + 1))
end
if is_held and last == this then return held(holds) end
if is_held and last > this then return 'stale ' .. echo end

local places = read('LLEN', queue)
local has_ticket = read('ZSCORE', deadlines, ticket)
local most = room.set_limit or tonumber(own_limit)
-- A waiter stays, and with a limit of 0 all wait.
if weight > most and most > 0 and not (has_ticket and places > 0) then return 'heavy ' .. echo .. ' ' .. string.format('%d', most) end
-- The owner has lost this hold, see lua/acquire.lua.
if holds then uncount(room, owner, tonumber(its_weight)) end

local found = look(places, waits and client, room)
local own
for _, winner in ipairs(found.winners) do
  if winner.owner == owner and winner.seq == seq then own = winner end
end
if own then
  own.lease = tonumber(lease)
  -- Its client is alive, and may wait with other owners.
  hear(client, read('ZSCORE', deadlines, client), false)
elseif not found.stops and not found.more and not found.has_won[owner] then
  -- P3: no waiter comes first.
  local is_room
  is_room, found.more = has_room(room, weight, own_limit)
  if is_room then
    own = { owner = owner, seq = seq, terms = terms, weight = weight, lease = tonumber(lease) }
    let_in(found, room, own)
    -- A ticket without a place.
    if has_ticket then found.dead[#found.dead + 1] = ticket end
  end
end
if own then
  serve(found, room, ticket)
  return 'held ' .. echo .. ' ' .. own.token .. ' 1 ' .. lease
end
if not waits then return 'busy ' .. echo .. ' ' .. serve(found, room, ticket) end
-- R13, P3: see lua/acquire.lua.
local known, with_mine = join()
if with_mine then found.places = with_mine end
-- R7: see the floor in lua/acquire.lua.
local floor = string.format('%d', token + #found.winners - 1)
local more = serve(found, room, ticket)
return queued(floor, more, '', known, with_mine and found.places)
