#!lua flags=allow-oom
-- release: sets the number of holds of an owner to a smaller one. 0 frees the lock and passes it on.
--
-- KEYS[1] lock       hash     owner -> holds, and !grant
-- KEYS[2] queue      list     places, oldest first
-- KEYS[3] deadlines  zset     client -> server ms at which it is dead; ticket -> inf
-- KEYS[4] tokens     string   the last token given
-- KEYS[5] tombstone  string   the seq up to which this owner has left (R3); only with late
-- ARGV[1] request    growing number, returned as it is
-- ARGV[2] owner      <client>:<n>
-- ARGV[3] seq        of this release; a retry repeats it (R1)
-- ARGV[4] holds      that remain: 0, or n:token, the token of the hold
-- ARGV[5] token_ttl  ms
-- ARGV[6] channel    prefix of the clients' channels
-- ARGV[7] late       only where a copy of the acquire may be under way: until when it can be served (server ms), a
--                    space, and the place of the attempt that began the hold
--
-- Returns one text: status, request, server time (s and us; 0 0 where it did not look at the clock), and
--   freed, token, more   the owner held the lock, which was passed on; token is that of its hold
--   held, holds          that many remain
--   lost                 holds > 0, but the owner does not hold under that token
--   gone, more           the owner holds nothing from before this release
--   stale                a later request of the owner was served
-- `more` is 1 when the lock is free and a live ticket may wait behind those that one call looks at: poll at once.
--
-- Keeps: the count is set, never counted down, so a second run changes nothing: the same answer
-- for holds > 0, gone for 0. A later attempt of the owner is not touched (R4).
local lock, queue, deadlines, tokens, tombstone = unpack(KEYS)
local request, owner, seq, holds, token_ttl, channel, late = unpack(ARGV)
local caller = owner

--#include base

local fields = read('HMGET', lock, owner, '!grant')
local our_holds, attempt, current = fields[1], string.match(fields[2] or '', GRANT)
local last, this = tonumber(attempt or '0'), tonumber(seq)

if holds ~= '0' then
  local count, token = string.match(holds, '^(%d+):(.*)$')
  if not our_holds or current ~= token then return 'lost ' .. request .. ' 0 0' end
  if last > this then return 'stale ' .. request .. ' 0 0' end
  if last == this then return 'held ' .. request .. ' 0 0 ' .. our_holds end
  call('HSET', lock, owner, count, '!grant', (string.gsub(fields[2], '^%d+', seq)))
  return 'held ' .. request .. ' 0 0 ' .. count
end

-- R4: a late copy of this release must not end a later hold. The token is not compared: a hold that a copy of
-- the acquire has taken again is the owner's too, and it would have no guard.
local ours = our_holds and last <= this
local places = read('LLEN', queue)

-- The short ways, and the usual cases. They end before the functions of the long way are made, since making one
-- costs as much as a small call. First: nobody waits.
if ours and places == 0 and not late then
  call('DEL', lock)
  return 'freed ' .. request .. ' 0 0 ' .. current .. ' 0'
end

--#include serve

-- Second: the first in line is alive, and its client is reachable.
local ending = ours and owner
local place = ours and not late and call('LINDEX', queue, '0') or ''
local next_owner, client, next_seq, terms, grant_ttl = string.match(place, PLACE)
local client_until = next_owner and tonumber(read('ZSCORE', deadlines, client) or '0') or 0
if client_until - now >= 1 then
  local token, ticket = next_token(current), next_owner .. ':' .. next_seq
  -- Taken out first: that it was there says that it has not left.
  if call('ZREM', deadlines, ticket) == 1 then
    if offer(token, next_owner, client, next_seq, terms, grant_ttl, client_until, owner) then
      if places == 1 then call('DEL', deadlines) end
      call('LPOP', queue)
      return 'freed ' .. echo .. ' ' .. current .. ' 0'
    end
    call('ZADD', deadlines, 'inf', ticket)
    ending = next_owner
  end
end

--#include advance

if not current then
  refuse_foreign_hash()
elseif not ours and #call('HGETALL', lock) == 2 then
  -- An earlier copy was refused in the middle: the lock has no owner any more, and is still to be passed on.
  ending = ''
end
read('ZCARD', deadlines)
if late then
  --#include purge
  read('GET', tombstone)
  next_token()
  local copies_until
  copies_until, place = string.match(late, '^(%d+) (.*)$')
  set_tombstone(this, tonumber(copies_until))
  places = purge(place, places)
end
local more = '0'
if ending or not current then more = pass_on(places, current, ending) end
return (ours and 'freed ' or 'gone ') .. echo .. (ours and ' ' .. current or '') .. ' ' .. more
