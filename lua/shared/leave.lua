#!lua flags=allow-oom
-- leave: ends one attempt in any state: queued, granted, held, or unknown to the server. Whoever there is room for then comes in: a
-- heavy waiter that leaves the front may have kept others waiting.
--
-- KEYS[1] lock       hash     owner -> a record, and !used: see lib/fields.lua
-- KEYS[2] queue      list     places, oldest first
-- KEYS[3] deadlines  zset     client -> server ms at which it is dead; ticket -> inf
-- KEYS[4] tokens     string   the last token given
-- KEYS[5] tombstone  string   the seq up to which this owner has left (R3)
-- KEYS[6] limit      string   the limit that is set for all clients, if there is one
-- KEYS[7] boot       string   when it was started, see boot.lua; only with strict_restart
-- ARGV[1] request    growing number, echoed in the reply
-- ARGV[2] copies_until  server ms up to which a copy of the acquire can be served; 0: no copy is on its way
-- ARGV[3] owner      <client>:<n>
-- ARGV[4] seq        all that this owner has from requests up to this one ends
-- ARGV[5] place      of the attempt in the queue; empty: it has none
-- ARGV[6] settings   waiter_ttl (ms that a client lives without being heard), max_waiters, token_ttl (ms), channel prefix
--
-- Returns one text: status, request, server time (s and us), and
--   freed, token, more   it held the name
--   gone, more           it did not hold it
-- `more` is 1 when another call may serve more of the queue: poll.
--
-- Keeps: a later attempt of the owner is not touched (R4). A second run finds nothing: gone.
local lock, queue, deadlines, tokens, tombstone, limit, boot = unpack(KEYS)
local request, copies_until, owner, seq, place, settings = unpack(ARGV)
local caller = owner

--#include leaving
--#paste freeze
--#include room
--#include advance

local _, holds, attempt, its_token, _, weight = string.match(room.record, RECORD)
local places = read('LLEN', queue)
read('ZCARD', deadlines)

-- R4: a retried leave can arrive after the owner's next attempt was served, and must not end that one.
local ours = holds and tonumber(attempt) <= tonumber(seq)
if ours then uncount(room, owner, tonumber(weight)) end
-- As for a release that is sent again: what has neither a hold nor a ticket was perhaps ended by a copy before this one.
if not holds and room.exists and not read('ZSCORE', deadlines, before(place, '/')) then take_out_ended(room) end
places = leave(tonumber(seq), tonumber(copies_until), place, places)
local more = serve(look(places, nil, room), room)
return (ours and 'freed ' or 'gone ') .. echo .. (ours and ' ' .. its_token or '') .. ' ' .. more
