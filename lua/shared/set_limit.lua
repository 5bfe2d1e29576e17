#!lua flags=allow-oom
-- set_limit: sets the limit of a semaphore for all clients, or lets each client's own count again. Whoever there is room for then
-- comes in; holders keep what they have.
--
-- KEYS[1] lock       hash     owner -> a record, and !used: see lib/fields.lua
-- KEYS[2] queue      list     places, oldest first
-- KEYS[3] deadlines  zset     client -> server ms at which it is dead; ticket -> inf
-- KEYS[4] tokens     string   the last token given
-- KEYS[5] limit      string   the limit that is set for all clients, if there is one; without a time to live
-- KEYS[6] boot       string   when it was started, see boot.lua; only with strict_restart
-- ARGV[1] request    growing number, echoed in the reply
-- ARGV[2] not_after  server us after which the request is refused: another client may have set another limit since (R2)
-- ARGV[3] caller     the client that sends the request
-- ARGV[4] permits    the limit, 0: no caller comes in; empty: no limit is set any more
-- ARGV[5] settings   waiter_ttl (ms that a client lives without being heard), max_waiters, token_ttl (ms), channel prefix
--
-- Returns one text: status, request, server time (s and us), and
--   set, more
--   late                 not_after has passed
-- `more` is 1 when another call may serve more of the queue: poll.
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
-- Before anything is written: it refuses what it cannot read.
local found = look(places, nil, room)
if permits == '' then call('DEL', limit) else call('SET', limit, permits) end
return 'set ' .. echo .. ' ' .. serve(found, room)
