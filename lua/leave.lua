#!lua flags=allow-oom
-- leave: ends one attempt, wherever it stands: queued, granted, held, or not there at all.
--
-- KEYS[1] lock       hash     owner -> holds, and !attempt, !token, !label
-- KEYS[2] queue      list     places, ticket/label, oldest first
-- KEYS[3] deadlines  zset     ticket -> server ms at which it is dead
-- KEYS[4] tokens     string   the last token given
-- KEYS[5] left       string   tombstone of this owner: the seq up to which it has left (R3)
-- ARGV[1] request    growing number, echoed
-- ARGV[2] last_ms    server ms up to which an earlier copy may still be served; 0: no copy is under way
-- ARGV[3] owner      <client>:<n>
-- ARGV[4] seq        everything of this owner up to it ends
-- ARGV[5] place      of the attempt in the queue
-- ARGV[6] grant_ttl  ms that a grant lives until it is confirmed
-- ARGV[7] token_ttl  ms
-- ARGV[8] channel    prefix of the clients' channels
--
-- Returns, after status, request, now:
--   freed, token, more   it held the lock, which was passed on
--   gone, '', more       it did not
-- `more` is 1 when the queue holds more dead tickets than one call clears: poll at once.
--
-- Keeps: a later attempt of the owner is not touched (R4). A second run finds nothing: gone.
local lock, queue, deadlines, tokens, left = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local request, last_ms, owner, seq, place = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5]
local grant_ttl, token_ttl, channel, asks = ARGV[6], ARGV[7], ARGV[8], owner

--#include base
--#include clock
--#include grant
--#include place
--#include serve
--#include look
--#include advance
--#include compact
--#include purge

local held = read('HMGET', lock, owner, '!attempt', '!token')
read('LLEN', queue)
read('ZCARD', deadlines)
last_token()
read('GET', left)

bury(left, seq, last_ms)
purge(place)
local ours = held[1] and (tonumber(held[2]) or 0) <= seq
if ours then call('DEL', lock) end
local more = false
if (ours or not held[3]) and call('LLEN', queue) > 0 then more = advance() end
return { ours and 'freed' or 'gone', request, now, ours and held[3] or '', more and 1 or 0 }
