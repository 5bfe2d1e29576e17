#!lua flags=allow-oom
-- renew: gives a holder its full lease again; also confirms a grant. It usually has one key, see lua/renew.lua.
--
-- KEYS[1] lock       hash     owner -> a record, and !used: see lib/fields.lua
-- KEYS[2] tokens     string   the last token; only now and then, so that it outlives a long hold
-- ARGV[1] request    growing number, echoed in the reply
-- ARGV[2] owner      <client>:<n>
-- ARGV[3] token      of the hold
-- ARGV[4] lease      ms
-- ARGV[5] only       seq: set the lease even if it gets shorter, unless the script has served a request after this
--                    attempt; 0: never shorten it; +seq: the same, and from now on no earlier request shortens it
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
-- R4: see lua/renew.lua.
if current ~= token or tonumber(ends) <= now then return 'lost ' .. echo end
now = math.floor(now)
local longer, before = now + lease, tonumber(ends)
-- See lua/renew.lua.
if longer < before and attempt ~= only then longer = before end
-- R16: see lua/renew.lua.
if string.sub(only, 1, 1) == '+' and tonumber(only) > tonumber(attempt) then attempt = string.sub(only, 2) end
local set = { owner, string.format('%d', longer) .. ' ' .. holds .. ' ' .. attempt .. ' ' .. token .. ' ' .. terms }
local summary = fields[2]
--#paste new_end
return 'renewed ' .. echo .. ' ' .. string.format('%d', longer - now)
