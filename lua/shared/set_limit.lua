#!lua flags=allow-oom
-- set_limit: sets the limit of a semaphore for all clients, or removes it, so that each client's own counts again. Then
-- lets in waiters as far as there is room; holders keep their holds.
--
-- KEYS[1] lock       hash     owner -> a record, and !used: see lib/fields.lua
-- KEYS[2] queue      list     places, oldest first
-- KEYS[3] deadlines  zset     client -> server ms at which it is dead; ticket -> inf
-- KEYS[4] tokens     string   the last token
-- KEYS[5] limit      string   the limit for all clients, if one is set; without a TTL
-- KEYS[6] boot       string   the record of boot.lua; only with strict_restart
-- ARGV[1] request    growing number, echoed in the reply
-- ARGV[2] not_after  server us after which the request is refused: another client may have set another limit since (R2)
-- ARGV[3] caller     the client that sends the request
-- ARGV[4] permits    the limit; 0: no caller comes in; empty: remove the limit
-- ARGV[5] settings   waiter_ttl (ms that a silent client stays alive), max_waiters, token_ttl (ms), channel prefix
--
-- Returns one text: status, request, server time (s and us), and (more is 1 if another call may serve more: poll)
--   set, more
--   late                 not_after has passed
--
-- A second run sets the same.
local lock, queue, deadlines, tokens, limit, boot = unpack(KEYS)
local request, not_after, caller, permits, settings = unpack(ARGV)
local owner = ''

--#include clock
--#paste freeze
--#include room
--#include advance

if #not_after < 16 or now_us > not_after then return 'late ' .. echo end
local places = read('LLEN', queue)
read('ZCARD', deadlines)
room.set_limit = tonumber(permits)
-- Before the script writes anything: `look` refuses malformed data.
local found = look(places, nil, room)
if permits == '' then call('DEL', limit) else call('SET', limit, permits) end
return 'set ' .. echo .. ' ' .. serve(found, room)
