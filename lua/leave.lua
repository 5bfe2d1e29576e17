#!lua flags=allow-oom
-- leave: ends one attempt in any state: queued, granted, held, or unknown to the server.
--
-- KEYS[1] lock       hash     owner -> holds, and !attempt, !token, !label
-- KEYS[2] queue      list     entries, ticket/label, oldest first
-- KEYS[3] deadlines  zset     ticket -> server ms at which it is dead
-- KEYS[4] tokens     string   the last token given
-- KEYS[5] tombstone  string   the seq up to which this owner has left (R3)
-- ARGV[1] request    growing number, returned as it is
-- ARGV[2] copies_until  server ms up to which a copy of the acquire can be served; 0: no copy is on its way
-- ARGV[3] owner      <client>:<n>
-- ARGV[4] seq        all that this owner has from requests up to this one ends
-- ARGV[5] entry      of the attempt in the queue
-- ARGV[6] grant_ttl  ms that a grant lives until it is confirmed
-- ARGV[7] token_ttl  ms
-- ARGV[8] channel    prefix of the clients' channels
--
-- Returns, after status, request, now:
--   freed, token, more   it held the lock, which was passed on
--   gone, '', more       it did not hold the lock
-- `more` is 1 when the queue holds more dead tickets than one call clears: poll at once.
--
-- Keeps: a later attempt of the owner is not touched (R4). A second run finds nothing: gone.
local lock, queue, deadlines, tokens, tombstone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local request, copies_until, owner, seq, entry = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5]
local grant_ttl, token_ttl, channel, caller = ARGV[6], ARGV[7], ARGV[8], owner

--#include purge

local holds, attempt, token = read_lock(owner)
read('LLEN', queue)
read('ZCARD', deadlines)
last_token()
read('GET', tombstone)

set_tombstone(seq, copies_until)
purge(entry)
-- R4: a retried leave can arrive after the owner's next attempt was served, and must not end that one.
local ours = holds and (tonumber(attempt) or 0) <= seq
if ours then call('DEL', lock) end
local more = false
if (ours or not token) and call('LLEN', queue) > 0 then more = advance() end
return { ours and 'freed' or 'gone', request, now, ours and token or '', more and 1 or 0 }
