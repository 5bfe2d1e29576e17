#!lua flags=allow-oom
-- force_unlock: ends the hold with one token, notifies its client, and lets in waiters as far as there is room.
--
-- KEYS[1] lock       hash     owner -> a record, and !used: see lib/fields.lua
-- KEYS[2] queue      list     places, oldest first
-- KEYS[3] deadlines  zset     client -> server ms at which it is dead; ticket -> inf
-- KEYS[4] tokens     string   the last token
-- KEYS[5] limit      string   the limit for all clients, if one is set
-- KEYS[6] boot       string   the record of boot.lua; only with strict_restart
-- ARGV[1] request    growing number, echoed in the reply
-- ARGV[2] not_after  server us after which the request is refused (R2)
-- ARGV[3] caller     the client that sends the request
-- ARGV[4] expected   the token
-- ARGV[5] settings   waiter_ttl (ms that a silent client stays alive), max_waiters, token_ttl (ms), channel prefix
--
-- Returns one text: status, request, server time (s and us), and (more is 1 if another call may serve more: poll)
--   freed, token, more
--   free, more           no hold has this token
--   late                 not_after has passed
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
-- Redis may have refused an earlier copy before it counted the end.
if not ended and room.exists then take_out_ended(room) end
-- Before the script publishes or writes anything: `look` refuses malformed data.
local found = look(places, nil, room)
if ended then
  -- P8: see lua/force_unlock.lua.
  redis.pcall('PUBLISH', channel .. string.match(ended, '^[^:]*'), 'revoked ' .. expected .. ' ' .. ended .. ' ' .. lock)
end
local more = serve(found, room)
return (ended and 'freed ' or 'free ') .. echo .. (ended and ' ' .. expected or '') .. ' ' .. more
