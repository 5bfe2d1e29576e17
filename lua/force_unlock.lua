#!lua flags=allow-oom
-- force_unlock: ends the present hold or grant, tells its client, and passes the lock on.
--
-- KEYS[1] lock       hash     owner -> holds, and !grant
-- KEYS[2] queue      list     places, oldest first
-- KEYS[3] deadlines  zset     client -> server ms at which it is dead; ticket -> inf
-- KEYS[4] tokens     string   the last token given
-- ARGV[1] request    growing number, returned as it is
-- ARGV[2] not_after  server us after which the request is refused, since it could hit a later holder (R2)
-- ARGV[3] caller     the client that sends the request
-- ARGV[4] token_ttl  ms
-- ARGV[5] channel    prefix of the clients' channels
--
-- Returns one text: status, request, server time (s and us), and
--   freed, token, more   the token whose hold was ended
--   free, more           there was no hold
--   late                 not_after has passed
-- `more` is 1 when the lock is free and a live ticket may wait behind those that one call looks at: poll at once.
--
-- A second run ends the next holder's lock: the client never repeats a request that may have run.
local lock, queue, deadlines, tokens = unpack(KEYS)
local request, not_after, caller, token_ttl, channel = unpack(ARGV)

--#include advance
--#include holder

if exceeds(now_us, not_after) then return 'late ' .. echo end
local owner, _, token = read_holder()
local places = read('LLEN', queue)
read('ZCARD', deadlines)
next_token()

if owner then
  -- P8: the holder learns of its loss at once, without waiting for its next renewal. pcall: A14.
  redis.pcall('PUBLISH', channel .. string.match(owner, '^[^:]*'), 'revoked ' .. token .. ' ' .. owner .. ' ' .. lock)
end
-- A hash that has lost its owner by hand is ended too.
local more = pass_on(places, token, token and (owner or ''))
return (token and 'freed ' or 'free ') .. echo .. (token and ' ' .. token or '') .. ' ' .. more
