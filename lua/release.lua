#!lua flags=allow-oom
-- release: sets the number of holds of an owner to a smaller one; 0 frees the lock and passes it on.
--
-- KEYS[1] lock       hash     owner -> holds, and !attempt, !token, !label
-- KEYS[2] queue      list     places, ticket/label, oldest first
-- KEYS[3] deadlines  zset     ticket -> server ms at which it is dead
-- KEYS[4] tokens     string   the last token given
-- KEYS[5] left       string   tombstone of this owner: the seq up to which it has left (R3); only with last_ms
-- ARGV[1] request    growing number, echoed
-- ARGV[2] last_ms    server ms up to which an earlier copy of the acquire may still be served; 0: none is under way
-- ARGV[3] owner      <client>:<n>
-- ARGV[4] seq        of this release; a retry repeats it (R1)
-- ARGV[5] holds      that remain
-- ARGV[6] token      of the hold
-- ARGV[7] grant_ttl  ms that a grant lives until it is confirmed
-- ARGV[8] token_ttl  ms
-- ARGV[9] channel    prefix of the clients' channels
-- ARGV[10] place     in the queue of the attempt that began the hold; only with last_ms
--
-- Returns, after status, request, now (0 where it did not look at the clock):
--   freed, token, more   the lock was this owner's and was passed on; token is the one it held
--   held, holds          that many remain
--   lost                 holds > 0, but the owner does not hold under that token
--   gone, '', more       the owner holds nothing from before this release
--   stale                a later request of the owner was served
-- `more` is 1 when the queue holds more dead tickets than one call clears: poll at once.
--
-- Keeps: the count is set, never counted down, so a second run changes nothing: the same answer
-- for holds > 0, gone for 0. A later attempt of the owner is not touched (R4).
local lock, queue, deadlines, tokens, left = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local request, last_ms, owner, seq, holds, token = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local grant_ttl, token_ttl, channel, place, asks = ARGV[7], ARGV[8], ARGV[9], ARGV[10], owner

--#include base

local held = read('HMGET', lock, owner, '!attempt', '!token')
local last, this = tonumber(held[2]) or 0, tonumber(seq)

if holds ~= '0' then
  if not held[1] or held[3] ~= token then return { 'lost', request, 0 } end
  if last > this then return { 'stale', request, 0 } end
  if last < this then call('HSET', lock, owner, holds, '!attempt', seq) end
  return { 'held', request, 0, tonumber(last == this and held[1] or holds) }
end

local ours = held[1] and last <= this
local short = ours and last_ms == 0
local head = short and read('LINDEX', queue, 0)
-- The usual case, and the short way: nobody waits.
if short and not head then
  call('DEL', lock)
  return { 'freed', request, 0, held[3], 0 }
end

--#include clock
--#include grant
--#include place
--#include serve

-- The usual hand-over: the first in line is alive and hears of it.
local first = head and ticket_of(head)
if first and serve(head, first, read('ZSCORE', deadlines, first), true) == 'served' then
  call('ZREM', deadlines, first)
  call('LPOP', queue)
  return { 'freed', request, now, held[3], 0 }
end

--#include look
--#include advance

if last_ms > 0 then
  --#include compact
  --#include purge
  read('LLEN', queue)
  read('ZCARD', deadlines)
  last_token()
  read('GET', left)
  bury(left, this, last_ms)
  purge(place)
end
local more = false
if ours or not held[3] then more = advance(ours) end
return { ours and 'freed' or 'gone', request, now, ours and held[3] or '', more and 1 or 0 }
