#!lua flags=allow-oom
-- give: makes another owner the holder, under the same token (R16). `detach` gives a hold to an owner that exists for a
-- handle and belongs to no client; `attach` gives it from there to an owner of a client.
--
-- KEYS[1] lock       hash     owner -> holds, and !grant
-- KEYS[2] tokens     string   the last token
-- KEYS[3] tombstone  string   the seq up to which the new owner has left (R3)
-- ARGV[1] request    growing number, echoed in the reply
-- ARGV[2] not_after  server us after which the request is refused (R2)
-- ARGV[3] from       the present owner
-- ARGV[4] seq        of this request: a hold that `from` got by a later one stays (R4)
-- ARGV[5] token      of the hold
-- ARGV[6] to         the new owner
-- ARGV[7] attempt    the seq under which it gets the hold; a retry repeats it (R1)
-- ARGV[8] lease      ms, from now on, even if more was left: nobody relies on that any longer
-- ARGV[9] terms      of the hold: grant_ttl (ms), /, and its label
-- ARGV[10] token_ttl ms
--
-- Returns one text: status, request, server time (s and us), and
--   given, lease left ms
--   lost                 neither owner holds the lock under this token
--   late | left | stale  not_after has passed | a tombstone | the script has served a later request of `from`
--
-- Keeps: the token, and the time of the grant. It never creates a hold. A second run changes nothing: it gets the same
-- answer, or lost if `to` has ended the hold since.
local lock, tokens, tombstone = unpack(KEYS)
local request, not_after, from, seq, token, to, attempt, lease, terms, token_ttl = unpack(ARGV)

--#include clock
--#include read

local fields = read('HMGET', lock, from, to, '!grant')
local last, current, began = string.match(fields[3] or '', '^(%d+) (%d+) (%d+ %d+) ')
if current ~= token then return 'lost ' .. echo end
-- R1: before the checks that refuse a copy. So a refusal means that no copy had any effect, and none ever will.
if fields[2] and last == attempt then return 'given ' .. echo .. ' ' .. call('PTTL', lock) end
if #not_after < 16 or now_us > not_after then return 'late ' .. echo end
-- R3: the new owner has given up, or someone has released the handle already.
local left_up_to = read('GET', tombstone)
if left_up_to and tonumber(left_up_to) >= tonumber(attempt) then return 'left ' .. echo end
if not fields[1] then return 'lost ' .. echo end
-- R4: an earlier copy has detached it, and the owner has attached it since.
if tonumber(last) > tonumber(seq) then return 'stale ' .. echo end

-- See lib/hold.lua: never two owners, and `!grant` stays.
call('HDEL', lock, from)
local grant = attempt .. ' ' .. token .. ' ' .. began .. ' ' .. terms
call('HSET', lock, to, '1', '!grant', grant)
call('PEXPIRE', lock, lease)
-- P2: see renew.lua.
if call('PEXPIRE', tokens, token_ttl) == 0 then call('SET', tokens, token, 'PX', token_ttl) end
return 'given ' .. echo .. ' ' .. lease
