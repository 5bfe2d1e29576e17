#!lua flags=allow-oom
-- force_unlock: ends the hold with one token, and notifies its client. Whoever there is room for then comes in.
--
-- KEYS[1] lock       hash     owner -> a record, and !used: see lib/fields.lua
-- KEYS[2] queue      list     places, oldest first
-- KEYS[3] deadlines  zset     client -> server ms at which it is dead; ticket -> inf
-- KEYS[4] tokens     string   the last token given
-- KEYS[5] limit      string   the limit that is set for all clients, if there is one
-- KEYS[6] boot       string   when it was started, see boot.lua; only with strict_restart
-- ARGV[1] request    growing number, echoed in the reply
-- ARGV[2] not_after  server us after which the request is refused, as for a lock (R2)
-- ARGV[3] caller     the client that sends the request
-- ARGV[4] expected   the token
-- ARGV[5] settings   waiter_ttl (ms that a client lives without being heard), max_waiters, token_ttl (ms), channel prefix
--
-- Returns one text: status, request, server time (s and us), and
--   freed, token, more
--   free, more           no hold has this token
--   late                 not_after has passed
-- `more` is 1 when another call may serve more of the queue: poll.
--
-- A second run finds no hold with this token: free.
local lock, queue, deadlines, tokens, limit, boot = unpack(KEYS)
local request, not_after, caller, expected, settings = unpack(ARGV)
local owner = ''

--#include clock
--#paste freeze
--#include room
--#include advance

if #not_after < 16 or now_us > not_after then return 'late ' .. echo end
local places = read('LLEN', queue)
read('ZCARD', deadlines)
local fields, ended = read('HGETALL', lock), nil
for i = 1, #fields, 2 do
  local ends, _, _, its_token, _, weight = string.match(fields[i + 1], RECORD)
  if ends and its_token == expected and tonumber(ends) > now then
    ended = fields[i]
    uncount(room, fields[i], tonumber(weight))
  end
end
-- As for a release that is sent again.
if not ended and room.exists then take_out_ended(room) end
-- Before anything is published or written: it refuses what it cannot read.
local found = look(places, nil, room)
if ended then
  -- P8, as for a lock.
  redis.pcall('PUBLISH', channel .. string.match(ended, '^[^:]*'), 'revoked ' .. expected .. ' ' .. ended .. ' ' .. lock)
end
local more = serve(found, room)
return (ended and 'freed ' or 'free ') .. echo .. (ended and ' ' .. expected or '') .. ' ' .. more
