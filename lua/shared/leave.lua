#!lua flags=allow-oom
-- leave: ends one attempt in any state: queued, granted, held, or unknown to the server. Then lets in waiters as far as
-- there is room: a heavy waiter that leaves the front may have kept others waiting.
--
-- KEYS[1] lock       hash     owner -> a record, and !used: see lib/fields.lua
-- KEYS[2] queue      list     places, oldest first
-- KEYS[3] deadlines  zset     client -> server ms at which it is dead; ticket -> inf
-- KEYS[4] tokens     string   the last token
-- KEYS[5] tombstone  string   the seq up to which this owner has left (R3)
-- KEYS[6] limit      string   the limit for all clients, if one is set
-- KEYS[7] boot       string   the record of boot.lua; only with strict_restart
-- ARGV[1] request    growing number, echoed in the reply
-- ARGV[2] copies_until  server ms until which the server would serve a copy of the acquire; 0: no copy is on its way
-- ARGV[3] owner      <client>:<n>
-- ARGV[4] seq        everything that this owner has from requests up to this one ends
-- ARGV[5] place      of the attempt in the queue; empty: it has none
-- ARGV[6] settings   waiter_ttl (ms that a silent client stays alive), max_waiters, token_ttl (ms), channel prefix
--
-- Returns one text: status, request, server time (s and us), and (more is 1 if another call may serve more: poll)
--   freed, token, more   it held the name
--   gone, more           it did not hold it
--
-- Keeps: it does not touch a later attempt of the owner (R4). A second run finds nothing: gone.
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

-- R4: see lua/leave.lua.
local ours = holds and tonumber(attempt) <= tonumber(seq)
if ours then uncount(room, owner, tonumber(weight)) end
-- With neither a hold nor a ticket: an earlier copy may have ended it, and Redis refused that copy before it counted.
if not holds and room.exists and not read('ZSCORE', deadlines, before(place, '/')) then take_out_ended(room) end
places = leave(tonumber(seq), tonumber(copies_until), place, places)
local more = serve(look(places, nil, room), room)
return (ours and 'freed ' or 'gone ') .. echo .. (ours and ' ' .. its_token or '') .. ' ' .. more
