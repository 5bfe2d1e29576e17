#!lua flags=allow-oom
-- renew: gives the holder its lease anew; also the confirmation of a grant. It touches one key,
-- since a cluster that moves a slot refuses scripts over several keys when one is absent.
--
-- KEYS[1] lock       hash     owner -> holds, and !attempt, !token, !label
-- ARGV[1] request    growing number, echoed
-- ARGV[2] owner      <client>:<n>
-- ARGV[3] token      of the hold
-- ARGV[4] lease      ms
-- ARGV[5] only       seq: set the lease even if it gets shorter, as long as nothing came after
--                    this attempt; 0: never shorten it
--
-- Returns, after status, request, now:
--   renewed, lease left ms
--   lost                 somebody else holds it, or nobody, or this owner under another token
--
-- Keeps: it never creates a key or a field (R4). A second run does the same again.
local lock = KEYS[1]
local request, owner, token, lease, only = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]

--#include base
--#include clock

local held = read('HMGET', lock, owner, '!attempt', '!token')
if not held[1] or held[3] ~= token then return { 'lost', request, now } end
local remaining = call('PTTL', lock)
-- A late copy of a renewal must not cut the longer lease that a nested hold asked for since.
if remaining < lease or held[2] == only then
  call('PEXPIRE', lock, lease)
  remaining = lease
end
return { 'renewed', request, now, remaining }
