#!lua flags=allow-oom
-- force_unlock: ends the present hold or grant, tells its client, and passes the lock on.
--
-- KEYS[1] lock       hash     owner -> holds, and !attempt, !token, !label
-- KEYS[2] queue      list     entries, ticket/label, oldest first
-- KEYS[3] deadlines  zset     ticket -> server ms at which it is dead
-- KEYS[4] tokens     string   the last token given
-- ARGV[1] request    growing number, returned as it is
-- ARGV[2] not_after  server ms after which the request is refused, since it could hit a later holder (R2)
-- ARGV[3] grant_ttl  ms that a grant lives until it is confirmed
-- ARGV[4] token_ttl  ms
-- ARGV[5] channel    prefix of the clients' channels
-- ARGV[6] caller     the client that sends the request
--
-- Returns, after status, request, now:
--   freed, token, more   the token whose hold was ended
--   free, '', more       there was no hold
--   late                 not_after has passed
-- `more` is 1 when the queue holds more dead tickets than one call clears: poll at once.
--
-- A second run ends the next holder's lock: the client never repeats a request that may have run.
local lock, queue, deadlines, tokens = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local request, not_after, grant_ttl, token_ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local channel, caller = ARGV[5], ARGV[6]

--#include advance

if now > not_after then return { 'late', request, now } end
local _, _, token, owner = read_lock()
-- A hash without a token is somebody's data, and DEL would end it.
check_token(owner and not token)
local waiting = read('LLEN', queue)
read('ZCARD', deadlines)
last_token()

local ended = call('DEL', lock) == 1
if owner and token then
  -- P8: the holder learns of its loss at once, without waiting for its next renewal.
  local client = string.match(owner, '^(.*):%d+$') or owner
  call('PUBLISH', channel .. client, 'revoked ' .. token .. ' ' .. owner .. ' ' .. lock)
end
local more = false
if waiting > 0 then more = advance() end
return { ended and 'freed' or 'free', request, now, token or '', more and 1 or 0 }
