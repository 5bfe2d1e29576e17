#!lua flags=allow-oom
-- release: sets the number of holds of an owner to a smaller one. 0 frees the lock and passes it on.
--
-- KEYS[1] lock       hash     owner -> holds, and !attempt, !token, !label
-- KEYS[2] queue      list     entries, ticket/label, oldest first
-- KEYS[3] deadlines  zset     ticket -> server ms at which it is dead
-- KEYS[4] tokens     string   the last token given
-- KEYS[5] tombstone  string   the seq up to which this owner has left (R3); only with copies_until
-- ARGV[1] request    growing number, returned as it is
-- ARGV[2] copies_until  server ms up to which a copy of the acquire can be served; 0: no copy is on its way
-- ARGV[3] owner      <client>:<n>
-- ARGV[4] seq        of this release; a retry repeats it (R1)
-- ARGV[5] holds      that remain
-- ARGV[6] token      of the hold
-- ARGV[7] grant_ttl  ms that a grant lives until it is confirmed
-- ARGV[8] token_ttl  ms
-- ARGV[9] channel    prefix of the clients' channels
-- ARGV[10] entry     in the queue, of the attempt that began the hold; only with copies_until
--
-- Returns, after status, request, now (0 where it did not look at the clock):
--   freed, token, more   the owner held the lock, which was passed on; token is that of its hold
--   held, holds          that many remain
--   lost                 holds > 0, but the owner does not hold under that token
--   gone, '', more       the owner holds nothing from before this release
--   stale                a later request of the owner was served
-- `more` is 1 when the queue holds more dead tickets than one call clears: poll at once.
--
-- Keeps: the count is set, never counted down, so a second run changes nothing: the same answer
-- for holds > 0, gone for 0. A later attempt of the owner is not touched (R4).
local lock, queue, deadlines, tokens, tombstone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local request, copies_until, owner, seq, holds, token = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local grant_ttl, token_ttl, channel, entry, caller = ARGV[7], ARGV[8], ARGV[9], ARGV[10], owner

--#include base

local our_holds, attempt, current = read_lock(owner)
local last, this = tonumber(attempt) or 0, tonumber(seq)

if holds ~= '0' then
  if not our_holds or current ~= token then return { 'lost', request, 0 } end
  if last > this then return { 'stale', request, 0 } end
  if last < this then call('HSET', lock, owner, holds, '!attempt', seq) end
  return { 'held', request, 0, tonumber(last == this and our_holds or holds) }
end

-- R4: a late copy of this release must not end a later hold. The token is not compared: a hold that a copy of
-- the acquire has taken again is the owner's too, and it would have no guard.
local ours = our_holds and last <= this
local short = ours and copies_until == 0
local head = short and read('LINDEX', queue, 0)
-- The short way, and the usual case: the queue is empty. It ends before the functions of the long way are made,
-- and before the call for the time.
if short and not head then
  call('DEL', lock)
  return { 'freed', request, 0, current, 0 }
end

--#include serve

-- The usual hand-over: the first in line is alive and its client is reachable.
local first = head and ticket_of(head)
if first and serve(head, first, read('ZSCORE', deadlines, first), true) == 'served' then
  call('ZREM', deadlines, first)
  call('LPOP', queue)
  return { 'freed', request, now, current, 0 }
end

--#include advance

if copies_until > 0 then
  --#include purge
  read('LLEN', queue)
  read('ZCARD', deadlines)
  last_token()
  read('GET', tombstone)
  set_tombstone(this, copies_until)
  purge(entry)
end
-- R6: `advance` deletes the hold itself, once it has read all that it writes.
local more = false
if ours or not current then more = advance(ours) end
return { ours and 'freed' or 'gone', request, now, ours and current or '', more and 1 or 0 }
