#!lua flags=allow-oom
-- give: makes another owner the holder of a share, under the same token and with the same weight (R16): `detach` and `attach`, as for
-- a lock. Others hold beside it, and what is held together does not change.
--
-- KEYS[1] lock       hash     owner -> a record, and !used: see lib/fields.lua
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
-- ARGV[9] terms      of the call, as of an acquire; weight and limit stay those of the hold
-- ARGV[10] token_ttl ms
--
-- Returns one text: status, request, server time (s and us), and
--   given, lease left ms, weight
--   lost                 neither owner holds it under this token, or `to` is counted already
--   late | left | stale  not_after has passed | a tombstone | a later request of `from` was served
--
-- Keeps: the token, the weight, and with it what is held together. It never creates a hold. A second run changes nothing: the same
-- answer, or lost if `to` has ended it since.
local lock, tokens, tombstone = unpack(KEYS)
local request, not_after, from, seq, token, to, attempt, lease, terms, token_ttl = unpack(ARGV)

--#include millis
--#include read
--#include fields

local fields = read('HMGET', lock, from, to, '!used')
local ends, _, last, current, _, weight = string.match(fields[2] or '', RECORD)
-- R1: before what refuses a copy, as for a lock.
if last == attempt and current == token and tonumber(ends) > now then
  -- That copy may have been refused before it came to this.
  local left = string.format('%d', ends - now)
  if call('PTTL', lock) < tonumber(left) then call('PEXPIRE', lock, left) end
  return 'given ' .. echo .. ' ' .. left .. ' ' .. weight
end
local its_terms
ends, _, last, current, its_terms, weight = string.match(fields[1] or '', RECORD)
-- A lease that is over is not passed on. P4: an owner whose ended hold is still counted would take that record's place.
-- Before what refuses a copy, too: what a copy gave may be over, and then its owner has nothing to go on with (P1).
if current ~= token or tonumber(ends) <= now or fields[2] or not fields[3] then return 'lost ' .. echo end
if #not_after < 16 or now_us > not_after then return 'late ' .. echo end
-- R3, as for a lock.
local left_up_to = read('GET', tombstone)
if left_up_to and tonumber(left_up_to) >= tonumber(attempt) then return 'left ' .. echo end
-- R4, as for a lock.
if tonumber(last) > tonumber(seq) then return 'stale ' .. echo end

now = math.floor(now)
local longer, summary = now + lease, fields[3]
its_terms = string.match(its_terms, '^%d+,%d+,') .. string.match(terms, '^%d+,%d+,(.*)$')
local set = { to, string.format('%d', longer) .. ' 1 ' .. attempt .. ' ' .. token .. ' ' .. its_terms, '!used', summary }
-- P5: what a refusal leaves is counted anew by the next who needs room, as if an end had come.
call('HSET', lock, '!used', (string.gsub(summary, '^(%d+ %d+) %d+', '%1 0')))
-- The old one first: what a refusal leaves is counted too high, and never too low (P1).
call('HDEL', lock, from)
--#paste new_end
return 'given ' .. echo .. ' ' .. lease .. ' ' .. weight
