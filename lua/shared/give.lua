#!lua flags=allow-oom
-- give: makes another owner the holder of a share, with the same token and weight (R16): `detach` and `attach`, see
-- lua/give.lua. The total held does not change.
--
-- KEYS[1] lock       hash     owner -> a record, and !used: see lib/fields.lua
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
-- ARGV[9] terms      of the call, see acquire.lua; the hold keeps its weight and limit
-- ARGV[10] token_ttl ms
--
-- Returns one text: status, request, server time (s and us), and
--   given, lease left ms, weight
--   lost                 neither owner holds it under this token, or `to` counts already
--   late | left | stale  not_after has passed | a tombstone | the script has served a later request of `from`
--
-- Keeps: the token, the weight, and so the total held. It never creates a hold. A second run: see lua/give.lua.
local lock, tokens, tombstone = unpack(KEYS)
local request, not_after, from, seq, token, to, attempt, lease, terms, token_ttl = unpack(ARGV)

--#include millis
--#include read
--#include fields

local fields = read('HMGET', lock, from, to, '!used')
local ends, _, last, current, _, weight = string.match(fields[2] or '', RECORD)
-- R1: before the checks that refuse a copy, see lua/give.lua.
if last == attempt and current == token and tonumber(ends) > now then
  -- Redis may have refused that copy before it set this lease.
  local left = string.format('%d', ends - now)
  if call('PTTL', lock) < tonumber(left) then call('PEXPIRE', lock, left) end
  return 'given ' .. echo .. ' ' .. left .. ' ' .. weight
end
local its_terms
ends, _, last, current, its_terms, weight = string.match(fields[1] or '', RECORD)
-- An ended lease does not move on. P4: if `to` has an ended hold that still counts, this one would replace its record.
-- This too comes before the checks that refuse a copy: the hold that a copy gave may have ended, and then its owner has
-- nothing to go on with (P1).
if current ~= token or tonumber(ends) <= now or fields[2] or not fields[3] then return 'lost ' .. echo end
if #not_after < 16 or now_us > not_after then return 'late ' .. echo end
-- R3, R4: see lua/give.lua.
local left_up_to = read('GET', tombstone)
if left_up_to and tonumber(left_up_to) >= tonumber(attempt) then return 'left ' .. echo end
if tonumber(last) > tonumber(seq) then return 'stale ' .. echo end

now = math.floor(now)
local longer, summary = now + lease, fields[3]
its_terms = string.match(its_terms, '^%d+,%d+,') .. string.match(terms, '^%d+,%d+,(.*)$')
local set = { to, string.format('%d', longer) .. ' 1 ' .. attempt .. ' ' .. token .. ' ' .. its_terms, '!used', summary }
-- P5: after a refusal, the next caller that needs room counts again, as if a lease had ended.
call('HSET', lock, '!used', (string.gsub(summary, '^(%d+ %d+) %d+', '%1 0')))
-- The old record first: after a refusal the count is too high, and never too low (P1).
call('HDEL', lock, from)
--#paste new_end
return 'given ' .. echo .. ' ' .. lease .. ' ' .. weight
