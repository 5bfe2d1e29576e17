#!lua flags=allow-oom
-- give: makes another owner the holder, under the same token (R16). `detach` gives a hold to an owner that is made for a handle
-- and is no client's, `attach` gives it from there to an owner of a client.
--
-- KEYS[1] lock       hash     owner -> holds, and !grant
-- KEYS[2] tokens     string   the last token given
-- KEYS[3] tombstone  string   the seq up to which the owner that gets it has left (R3)
-- ARGV[1] request    growing number, echoed in the reply
-- ARGV[2] not_after  server us after which the request is refused (R2)
-- ARGV[3] from       the owner that has it
-- ARGV[4] seq        of this request: what `from` has got by a later one stays (R4)
-- ARGV[5] token      of the hold
-- ARGV[6] to         the owner that gets it
-- ARGV[7] attempt    the seq that it gets it with; a retry repeats it (R1)
-- ARGV[8] lease      ms, from now on, also where more was left, which is not relied on any longer
-- ARGV[9] terms      of the hold: grant_ttl (ms), /, and its label
-- ARGV[10] token_ttl ms
--
-- Returns one text: status, request, server time (s and us), and
--   given, lease left ms
--   lost                 neither owner holds the lock under this token
--   late | left | stale  not_after has passed | a tombstone | a later request of `from` was served
--
-- Keeps: the token, and the time of the grant. It gives what is there and never creates a hold. A second run changes nothing: the
-- same answer, or lost if `to` has ended it since.
local lock, tokens, tombstone = unpack(KEYS)
local request, not_after, from, seq, token, to, attempt, lease, terms, token_ttl = unpack(ARGV)

--#include clock
--#include read

local fields = read('HMGET', lock, from, to, '!grant')
local last, current, began = string.match(fields[3] or '', '^(%d+) (%d+) (%d+ %d+) ')
if current ~= token then return 'lost ' .. echo end
-- R1: before what refuses a copy. So each refusal says that no copy was served, and none can be any more.
if fields[2] and last == attempt then return 'given ' .. echo .. ' ' .. call('PTTL', lock) end
if #not_after < 16 or now_us > not_after then return 'late ' .. echo end
-- R3: who gets it has given up, or a handle was released already.
local left_up_to = read('GET', tombstone)
if left_up_to and tonumber(left_up_to) >= tonumber(attempt) then return 'left ' .. echo end
if not fields[1] then return 'lost ' .. echo end
-- R4: the owner has detached it before, by an earlier copy, and has attached it since.
if tonumber(last) > tonumber(seq) then return 'stale ' .. echo end

-- As in lib/hold.lua: never two owners, and `!grant` stays.
call('HDEL', lock, from)
local grant = attempt .. ' ' .. token .. ' ' .. began .. ' ' .. terms
call('HSET', lock, to, '1', '!grant', grant)
call('PEXPIRE', lock, lease)
-- P2: as in renew.lua.
if call('PEXPIRE', tokens, token_ttl) == 0 then call('SET', tokens, token, 'PX', token_ttl) end
return 'given ' .. echo .. ' ' .. lease
