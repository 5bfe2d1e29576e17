#!lua flags=allow-oom
-- acquire: one request for the lock, by one attempt (owner, seq). For an owner that holds it already: one
-- more hold.
--
-- KEYS[1] lock       hash     owner -> holds, and !attempt, !token, !label
-- KEYS[2] queue      list     entries, ticket/label, oldest first
-- KEYS[3] deadlines  zset     ticket -> server ms at which it is dead
-- KEYS[4] tokens     string   the last token given
-- KEYS[5] tombstone  string   the seq up to which this owner has left (R3)
-- ARGV[1] request    growing number, returned as it is
-- ARGV[2] not_after  server ms after which the request is refused (R2)
-- ARGV[3] owner      <client>:<n>
-- ARGV[4] seq        of the attempt; a retry repeats it (R1)
-- ARGV[5] holds      that the owner has already: 0, or n to re-enter
-- ARGV[6] token      of the hold to re-enter, '' when holds is 0
-- ARGV[7] wait       1: join the queue if the lock is not free, 0: do not
-- ARGV[8] lease      ms
-- ARGV[9] waiter_ttl ms that a ticket lives without a poll
-- ARGV[10] max_waiters
-- ARGV[11] grant_ttl ms that a grant lives until it is confirmed
-- ARGV[12] token_ttl ms
-- ARGV[13] channel   prefix of the clients' channels
-- ARGV[14] label     of the client
--
-- Returns, after status, request, now:
--   held, token, holds, lease left ms, 0
--   queued, floor (every later grant has a token above it), lease left ms of the holder or -1, more
--   busy, more         not free, and wait is 0
--   full, waiters      max_waiters are queued
--   lost               holds > 0, but the owner does not hold under that token
--   late | left | stale  not_after has passed | a tombstone | a later attempt of the owner was served
-- `more` is 1 when the queue holds more dead tickets than one call clears: poll at once.
--
-- Keeps: one owner at most; a free lock goes to the first live ticket, which no newcomer overtakes (P3); a retry
-- of the same seq gets the same answer and changes at most the lease (R1). A second run is such a retry.
local lock, queue, deadlines, tokens, tombstone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local request, not_after, owner, seq, holds, token = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local wait, lease, waiter_ttl, max_waiters = ARGV[7] == '1', ARGV[8], ARGV[9], ARGV[10]
local grant_ttl, token_ttl, channel, label, caller = ARGV[11], ARGV[12], ARGV[13], ARGV[14], owner

--#include grant

-- R2: the client has given this copy up. Served now, it would take a lock that no guard gives back.
if now > tonumber(not_after) then return { 'late', request, now } end

-- The short way, and the usual case: the lock is free, the queue is empty (P3), and this owner has not left (R3).
-- It ends before the functions of the long way are made, since making one costs as much as a small call.
if holds == '0' and call('EXISTS', lock, queue, tombstone) == 0 then
  return { 'held', request, now, hold(owner, seq, next_token(), lease, label), 1, tonumber(lease), 0 }
end

local ticket, this = owner .. ':' .. seq, tonumber(seq)
holds, waiter_ttl, max_waiters = tonumber(holds), tonumber(waiter_ttl), tonumber(max_waiters)

-- The lease never gets shorter here: the client may already rely on the longer one (R5).
local function held(its_holds, its_token)
  local remaining = call('PTTL', lock)
  if remaining < tonumber(lease) then
    call('PEXPIRE', lock, lease)
    remaining = tonumber(lease)
  end
  return { 'held', request, now, its_token, tonumber(its_holds), remaining, 0 }
end

-- R3: a copy that arrives after the owner has left must neither take the lock nor join the queue.
local left_up_to = read('GET', tombstone)
if left_up_to and tonumber(left_up_to) >= this then return { 'left', request, now } end
local our_holds, attempt, current = read_lock(owner)
check_token(current)
local last = tonumber(attempt) or 0

if holds > 0 then
  if not our_holds or current ~= token then return { 'lost', request, now } end
  if last > this then return { 'stale', request, now } end
  -- R1: set, never added to, so a retry finds the number that it would have set.
  if last < this then call('HSET', lock, owner, holds + 1, '!attempt', seq) end
  return held(last == this and our_holds or holds + 1, token)
end

-- A hash without a token is not a lock: taking it would mix our fields into somebody's data, and a release
-- would delete it.
if not current then check_token(call('EXISTS', lock) == 1) end

if our_holds and last == this then return held(our_holds, current) end
if our_holds and last > this then return { 'stale', request, now } end

--#include advance

local waiting, placed = read('LLEN', queue), nil
if current or waiting > 0 then
  -- The other keys may be written from here on: check their types before the first write.
  placed = read('ZSCORE', deadlines, ticket)
  last_token()
end

-- The owner asks for a first hold, so it has lost the earlier one and that leave is still on its way.
if our_holds then
  call('DEL', lock)
  current = false
end

local more, stopped = false, false
if not current and waiting > 0 then
  more, stopped = advance()
  our_holds, attempt, current = read_lock(owner)
  if our_holds and tonumber(attempt) == this then return held(our_holds, current) end
  -- Advance may have found this ticket dead and removed it.
  placed = call('ZSCORE', deadlines, ticket)
end

-- P3: where advance stopped at its bound, a live ticket may wait behind the bound.
if not current and not stopped then
  return { 'held', request, now, hold(owner, seq, next_token(), lease, label), 1, tonumber(lease), 0 }
end
if not wait then
  lease_left()
  return { 'busy', request, now, more and 1 or 0 }
end

local fresh = false
if not placed then
  local waiters = call('ZCARD', deadlines)
  -- Under a long hold nothing else removes the dead, so generations of them would pile up.
  if waiters >= math.min(64, max_waiters) then
    local dead = call('ZRANGEBYSCORE', deadlines, '-inf', now, 'LIMIT', 0, 128)
    if #dead > 0 then
      call('ZREM', deadlines, unpack(dead))
      waiters = waiters - #dead
    end
    if waiters >= max_waiters then return { 'full', request, now, waiters } end
  end
  if waiting > 128 then
    --#include purge
    compact()
  end
  call('RPUSH', queue, ticket .. '/' .. label)
  fresh = waiters == 0
end
call('ZADD', deadlines, now + waiter_ttl, ticket)
keep_queue(waiter_ttl, fresh)
return { 'queued', request, now, current or free_floor(), lease_left(), more and 1 or 0 }
