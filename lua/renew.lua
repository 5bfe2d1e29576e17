#!lua flags=allow-oom
-- renew: gives the holder its full lease again; also the confirmation of a grant. It has one key, because a
-- cluster that moves a slot refuses a script over several keys when one of them is absent.
--
-- KEYS[1] lock       hash     owner -> holds, and !attempt, !token, !label
-- ARGV[1] request    growing number, returned as it is
-- ARGV[2] owner      <client>:<n>
-- ARGV[3] token      of the hold
-- ARGV[4] lease      ms
-- ARGV[5] only       seq: set the lease even if it gets shorter, as long as no request was served after
--                    this attempt; 0: never shorten it
--
-- Returns, after status, request, now:
--   renewed, lease left ms
--   lost                 the owner does not hold the lock under this token
--
-- Keeps: it never creates a key or a field (R4). A second run does the same again.
local lock = KEYS[1]
local request, owner, token, lease, only = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]

--#include clock

local holds, attempt, current = read_lock(owner)
-- R4: after a loss the lock is free or another's. A renewal that came late must not take it again.
if not holds or current ~= token then return { 'lost', request, now } end
local remaining = call('PTTL', lock)
-- A late copy of a renewal must not cut the longer lease that a nested hold has asked for since then.
if remaining < lease or attempt == only then
  call('PEXPIRE', lock, lease)
  remaining = lease
end
return { 'renewed', request, now, remaining }
