#!lua flags=allow-oom
-- force_unlock: ends whatever hold or grant there is, tells its client, and passes the lock on.
--
-- KEYS[1] lock       hash     owner -> holds, and !attempt, !token, !label
-- KEYS[2] queue      list     places, ticket/label, oldest first
-- KEYS[3] deadlines  zset     ticket -> server ms at which it is dead
-- KEYS[4] tokens     string   the last token given
-- ARGV[1] request    growing number, echoed
-- ARGV[2] not_after  server ms; later than that it is refused, lest it hit a later holder (R2)
-- ARGV[3] grant_ttl  ms that a grant lives until it is confirmed
-- ARGV[4] token_ttl  ms
-- ARGV[5] channel    prefix of the clients' channels
-- ARGV[6] asks       the client that asks
--
-- Returns, after status, request, now:
--   freed, token, more   the token whose hold was ended
--   free, '', more       nobody held it
--   late                 not_after has passed
-- `more` is 1 when the queue holds more dead tickets than one call clears: poll at once.
--
-- A second run ends the next holder's lock: the caller never repeats one that may have run.
local lock, queue, deadlines, tokens = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local request, not_after, grant_ttl, token_ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local channel, asks = ARGV[5], ARGV[6]

--#include base
--#include clock
--#include grant
--#include place
--#include serve
--#include look
--#include advance

if now > not_after then return { 'late', request, now } end
local fields = read('HGETALL', lock)
local waiting = read('LLEN', queue)
read('ZCARD', deadlines)
last_token()

local owner, token
for i = 1, #fields, 2 do
  if fields[i] == '!token' then
    token = fields[i + 1]
  elseif string.sub(fields[i], 1, 1) ~= '!' then
    owner = fields[i]
  end
end
if #fields > 0 then call('DEL', lock) end
if owner and token then
  local client = string.match(owner, '^(.*):%d+$') or owner
  call('PUBLISH', channel .. client, 'revoked ' .. token .. ' ' .. owner .. ' ' .. lock)
end
local more = false
if waiting > 0 then more = advance() end
return { #fields > 0 and 'freed' or 'free', request, now, token or '', more and 1 or 0 }
