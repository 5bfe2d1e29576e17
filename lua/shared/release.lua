#!lua flags=allow-oom
-- release: reduces an owner's holds, or its weight. 0 holds end it. Then lets in waiters as far as there is room.
--
-- KEYS[1] lock       hash     owner -> a record, and !used: see lib/fields.lua
-- KEYS[2] queue      list     places, oldest first
-- KEYS[3] deadlines  zset     client -> server ms at which it is dead; ticket -> inf
-- KEYS[4] tokens     string   the last token
-- KEYS[5] tombstone  string   the seq up to which this owner has left (R3)
-- KEYS[6] limit      string   the limit for all clients, if one is set
-- KEYS[7] boot       string   the record of boot.lua; only with strict_restart
-- ARGV[1] request    growing number, echoed in the reply
-- ARGV[2] owner      <client>:<n>
-- ARGV[3] seq        of this release; a retry repeats it (R1)
-- ARGV[4] settings   waiter_ttl (ms that a silent client stays alive), max_waiters, token_ttl (ms), channel prefix
-- ARGV[5] special    only if holds remain: n:token:weight, its token, and the remaining weight, no more than now;
--                    or if a copy of the acquire may be under way, or for a handle: see lua/release.lua
--
-- Returns one text: status, request, server time (s and us; 0 0 if not read), and (more is 1 if another call may serve
-- more: poll)
--   freed, token, more   the owner held it under this token
--   held, holds, more    that many remain
--   lost                 holds > 0, but the owner does not hold under that token
--   gone, more           the owner holds nothing from before this release; of a handle also: its lease has ended
--   stale                the script has served a later request of the owner
--
-- Keeps: it sets holds and weight and never counts down (R4), so a second run changes nothing: see lua/release.lua.
local lock, queue, deadlines, tokens, tombstone, limit, boot = unpack(KEYS)
local request, owner, seq, settings, special = unpack(ARGV)
local caller = owner

--#include fields

-- The usual case in a straight line, see lua/release.lua: the queue is empty. The code below handles everything else.
local queued = special and {} or redis.pcall('LRANGE', queue, '0', '1')
if not special and not queued[1] and not queued.err then
  local found = redis.pcall('HMGET', lock, owner, '!used')
  local attempt, its_token, weight_at = string.match(found[1] or '', '^%d+ %d+ (%d+) (%d+) ()%d+,')
  local holders = string.match(found[2] or '', '^%d+ (%d+) ')
  if holders and attempt and tonumber(attempt) <= tonumber(seq) then
    if holders == '1' then
      call('DEL', lock)
    else
      local weight = string.match(found[1], '^%d+', weight_at)
      local used, rest = string.match(found[2], '^(%d+) %d+ (.*)$')
      call('HDEL', lock, owner)
      call('HSET', lock, '!used', used - weight .. ' ' .. holders - 1 .. ' ' .. rest)
    end
    return 'freed ' .. request .. ' 0 0 ' .. its_token .. ' 0'
  end
end

--#include millis
--#paste freeze
--#include place

-- The next usual case: the first in line comes in, and is the only one, or leaves no room for any waiter with its
-- limit.
local place, second = queued[1], queued[2]
if place and not frozen then
  local next_owner, client, next_seq, terms, weight, its_limit, grant_ttl = string.match(place, PLACE)
  local found = redis.pcall('HMGET', lock, owner, '!used', next_owner or '')
  local attempt, its_token, own_weight = string.match(found[1] or '', '^%d+ %d+ (%d+) (%d+) (%d+),')
  local used, holders, soon, current = string.match(found[2] or '', '^(%d+) (%d+) (%d+) (%d+)$')
  local is_ours = used and attempt and tonumber(attempt) <= tonumber(seq)
  if is_ours and next_owner and not found[3] and soon > string.sub(now_us, 1, -4) then
    local set
    --#paste usual_limit
    if own_weight ~= weight then used = string.format('%d', used - own_weight + weight) end
    local rest = (set or its_limit) - used
    -- If the second place has the same owner, the place after it counts, and may have another limit.
    local other_limit = not set and second and not string.find(second, next_owner .. ':', 1, true)
      and string.match(second, '^[^/]*/%d+,(%d+),')
    local is_last = not second or rest == 0 and (set or other_limit == its_limit)
    local client_until = rest >= 0 and is_last and tonumber(redis.pcall('ZSCORE', deadlines, client) or '0') or 0
    if client_until - now >= 1
      and (string.find(owner, client .. ':', 1, true) == 1 or redis.pcall('PUBSUB', 'NUMSUB', channel .. client)[2] ~= 0)
    then
      --#paste token
      local ticket = next_owner .. ':' .. next_seq
      -- The ticket first: if it is still there, it has not left.
      if call('ZREM', deadlines, ticket) == 1 then
        --#paste grant_lease
        local ends = string.format('%d', now + lease)
        --#paste remember
        call('HDEL', lock, owner)
        local summary = used .. ' ' .. holders .. ' ' .. (soon < ends and soon or ends) .. ' ' .. token
        call('HSET', lock, '!used', summary, next_owner, ends .. ' 1 ' .. next_seq .. ' ' .. token .. ' ' .. terms)
        if holders == '1' then call('PEXPIRE', lock, lease) else call('PEXPIRE', lock, lease, 'GT') end
        redis.pcall('PUBLISH', channel .. client, 'grant ' .. token .. ' ' .. lease .. ' ' .. ticket .. ' ' .. lock)
        if not second then call('UNLINK', deadlines) end
        call('LPOP', queue)
        return 'freed ' .. echo .. ' ' .. its_token .. ' 0'
      end
    end
  end
end

--#include room
--#include advance

local ends, holds, attempt, its_token, its_terms, weight = string.match(room.record, RECORD)
local is_held = holds and tonumber(ends) > now
local last, this = tonumber(attempt or '0'), tonumber(seq)
local places = read('LLEN', queue)
read('ZCARD', deadlines)

local count, token_of_hold, rest = string.match(special or '', '^(%d+):(%d+):?(%d*)$')
if count and count ~= '0' then
  if not is_held or its_token ~= token_of_hold then return 'lost ' .. echo end
  if last > this then return 'stale ' .. echo end
  if last == this then return 'held ' .. echo .. ' ' .. holds .. ' 0' end
  rest = math.min(tonumber(rest), tonumber(weight))
  change(room, owner, rest, weight - rest)
  local terms = string.format('%d', rest) .. string.match(its_terms, '^%d+(,.*)$')
  room.set = { owner, ends .. ' ' .. count .. ' ' .. seq .. ' ' .. its_token .. ' ' .. terms }
  return 'held ' .. echo .. ' ' .. count .. ' ' .. serve(look(places, nil, room), room)
end

-- R4: a late copy of this release must not end a later hold. Only a handle's token must match: it comes from outside.
local ours = holds and last <= this and not (count and its_token ~= token_of_hold)
if ours then uncount(room, owner, tonumber(weight)) end
-- Redis may have refused an earlier copy after it took the owner out, and before it counted that.
if not holds and room.exists then take_out_ended(room) end
if special then
  --#include leaving
  local copies_until, own = string.match(special, '^(%d+) (.*)$')
  places = leave(this, tonumber(copies_until or rest), own or '', places)
end
local more = serve(look(places, nil, room), room)
-- A guard's hold counts as freed even after its end: no waiter came in for it. A handle is lost then.
ours = ours and (is_held or not count)
return (ours and 'freed ' or 'gone ') .. echo .. (ours and ' ' .. its_token or '') .. ' ' .. more
