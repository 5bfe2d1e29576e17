#!lua flags=allow-oom
-- leave: ends one attempt in any state: queued, granted, held, or unknown to the server.
--
-- KEYS[1] lock       hash     owner -> holds, and !grant
-- KEYS[2] queue      list     places, oldest first
-- KEYS[3] deadlines  zset     client -> server ms at which it is dead; ticket -> inf
-- KEYS[4] tokens     string   the last token given
-- KEYS[5] tombstone  string   the seq up to which this owner has left (R3)
-- ARGV[1] request    growing number, returned as it is
-- ARGV[2] copies_until  server ms up to which a copy of the acquire can be served; 0: no copy is on its way
-- ARGV[3] owner      <client>:<n>
-- ARGV[4] seq        all that this owner has from requests up to this one ends
-- ARGV[5] place      of the attempt in the queue; empty: it has none
-- ARGV[6] token_ttl  ms
-- ARGV[7] channel    prefix of the clients' channels
--
-- Returns one text: status, request, server time (s and us), and
--   freed, token, more   it held the lock, which was passed on
--   gone, more           it did not hold the lock
-- `more` is 1 when the lock is free and a live ticket may wait behind those that one call looks at: poll at once.
--
-- Keeps: a later attempt of the owner is not touched (R4). A second run finds nothing: gone.
local lock, queue, deadlines, tokens, tombstone = unpack(KEYS)
local request, copies_until, owner, seq, place, token_ttl, channel = unpack(ARGV)
local caller = owner

--#include purge
--#include format

local fields = read('HMGET', lock, owner, '!grant')
local attempt, current = string.match(fields[2] or '', GRANT)
-- R4: a retried leave can arrive after the owner's next attempt was served, and must not end that one.
local ours = fields[1] and tonumber(attempt or '0') <= tonumber(seq)
local places = read('LLEN', queue)
read('ZCARD', deadlines)
read('GET', tombstone)
read('GET', tokens)
if places > 0 and not current then refuse_foreign_hash() end

set_tombstone(tonumber(seq), tonumber(copies_until))
places = purge(place, places)
local more = '0'
if ours or places > 0 and not current then
  --#include advance
  more = pass_on(places, current, ours and owner)
end
return (ours and 'freed ' or 'gone ') .. echo .. (ours and ' ' .. (current or '0') or '') .. ' ' .. more
