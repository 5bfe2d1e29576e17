#!lua flags=allow-oom
-- renew: gives a holder its full lease again; also the confirmation of a grant. As a rule it has one key, as for a lock.
--
-- KEYS[1] lock       hash     owner -> a record, and !used: see lib/fields.lua
-- KEYS[2] tokens     string   the last token given; only now and then, so that it outlives a long hold
-- ARGV[1] request    growing number, echoed in the reply
-- ARGV[2] owner      <client>:<n>
-- ARGV[3] token      of the hold
-- ARGV[4] lease      ms
-- ARGV[5] only       seq: set the lease even if it gets shorter, as long as no request was served after
--                    this attempt; 0: never shorten it; +seq: the same, and no earlier request shortens it from now on
-- ARGV[6] token_ttl  ms; only with tokens
--
-- Returns one text: status, request, server time (s and us), and
--   renewed, lease left ms
--   lost                 the owner does not hold it under this token
--
-- Keeps: it never creates a hold (R4). A second run does the same again.
local lock, tokens = unpack(KEYS)
local request, owner, token, lease, only, token_ttl = unpack(ARGV)

--#include millis
--#include read

local fields = read('HMGET', lock, owner, '!used')
local ends, holds, attempt, current, terms = string.match(fields[1] or '', '^(%d+) (%d+) (%d+) (%d+) (.*)$')
-- R4: after its end the hold is no one's, or another one's. A renewal that came late must not take it again.
if current ~= token or tonumber(ends) <= now then return 'lost ' .. echo end
now = math.floor(now)
local longer, before = now + lease, tonumber(ends)
-- A late copy of a renewal must not cut the longer lease that a nested hold has asked for since then.
if longer < before and attempt ~= only then longer = before end
-- R16: of an extend. A late copy of the first renewal after a grant must not cut it.
if string.sub(only, 1, 1) == '+' and tonumber(only) > tonumber(attempt) then attempt = string.sub(only, 2) end
local set = { owner, string.format('%d', longer) .. ' ' .. holds .. ' ' .. attempt .. ' ' .. token .. ' ' .. terms }
local summary = fields[2]
--#paste new_end
return 'renewed ' .. echo .. ' ' .. string.format('%d', longer - now)
