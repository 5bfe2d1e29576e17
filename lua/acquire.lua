#!lua flags=allow-oom
-- acquire: asks for the lock once, for one attempt (owner, seq); also one more hold on what the
-- owner has.
--
-- KEYS[1] lock       hash     owner -> holds, and !attempt, !token, !label
-- KEYS[2] queue      list     places, ticket/label, oldest first
-- KEYS[3] deadlines  zset     ticket -> server ms at which it is dead
-- KEYS[4] tokens     string   the last token given
-- KEYS[5] left       string   tombstone of this owner: the seq up to which it has left (R3)
-- ARGV[1] request    growing number, echoed
-- ARGV[2] not_after  server ms; later than that it is refused (R2)
-- ARGV[3] owner      <client>:<n>
-- ARGV[4] seq        of the attempt; a retry repeats it (R1)
-- ARGV[5] holds      what the owner has already: 0, or n to re-enter
-- ARGV[6] token      of the hold to re-enter, '' when holds is 0
-- ARGV[7] wait       1: queue if it is not free, 0: do not
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
--   queued, floor (no later grant has a token up to it), lease left ms of the holder or -1, more
--   busy, more         not free, and wait is 0
--   full, waiters      max_waiters are queued
--   lost               holds > 0, but the owner does not hold under that token
--   late | left | stale  not_after has passed | a tombstone | a later attempt of the owner was served
-- `more` is 1 when the queue holds more dead tickets than one call clears: poll at once.
--
-- Keeps: one owner at most; a free lock goes to the first live ticket, never past it (P3); a retry
-- of the same seq gets the same answer and changes at most the lease (R1). A second run is such a
-- retry.
local lock, queue, deadlines, tokens, left = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local request, not_after, owner, seq, holds, token = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local wait, lease, waiter_ttl, max_waiters = ARGV[7] == '1', ARGV[8], ARGV[9], ARGV[10]
local grant_ttl, token_ttl, channel, label, asks = ARGV[11], ARGV[12], ARGV[13], ARGV[14], owner

--#include base
--#include clock
--#include grant

-- The lock is free, and this attempt's.
local function take()
  local fresh = next_token()
  hold(owner, seq, fresh, lease, label)
  return { 'held', request, now, fresh, 1, tonumber(lease), 0 }
end

if now > tonumber(not_after) then return { 'late', request, now } end

-- The usual case, and the short way: nobody holds it, nobody waits, and this owner has not left.
if holds == '0' and call('EXISTS', lock, queue, left) == 0 then return take() end

--#include place
--#include serve
--#include look
--#include advance
--#include known

local function answer(status, ...)
  return { status, request, now, ... }
end

local ticket, this = owner .. ':' .. seq, tonumber(seq)
holds, waiter_ttl, max_waiters = tonumber(holds), tonumber(waiter_ttl), tonumber(max_waiters)

-- The lease never shrinks here: somebody may already rely on the longer one.
local function held_by_us(count, its_token)
  local remaining = call('PTTL', lock)
  if remaining < tonumber(lease) then
    call('PEXPIRE', lock, lease)
    remaining = tonumber(lease)
  end
  return answer('held', its_token, tonumber(count), remaining, 0)
end

local buried = read('GET', left)
if buried and tonumber(buried) >= this then return answer('left') end
local held = read('HMGET', lock, owner, '!attempt', '!token')
known(held[3], lock)
local last = tonumber(held[2]) or 0

if holds > 0 then
  if not held[1] or held[3] ~= token then return answer('lost') end
  if last > this then return answer('stale') end
  -- Set, never added to: a retry finds the number it would have set (R1).
  if last < this then call('HSET', lock, owner, holds + 1, '!attempt', seq) end
  return held_by_us(last == this and held[1] or holds + 1, token)
end

if held[1] and last == this then return held_by_us(held[1], held[3]) end
if held[1] and last > this then return answer('stale') end

local waiting, placed = read('LLEN', queue), nil
if held[3] or waiting > 0 then
  -- Contended: the other keys may be written, so look at their types first.
  placed = read('ZSCORE', deadlines, ticket)
  last_token()
end

-- By asking anew the owner says that its earlier hold is over: that hold was lost to it.
if held[1] then
  call('DEL', lock)
  held[3] = false
end

local more, stopped = false, false
if not held[3] and waiting > 0 then
  more, stopped = advance()
  held = call('HMGET', lock, owner, '!attempt', '!token')
  if held[1] and tonumber(held[2]) == this then return held_by_us(held[1], held[3]) end
  -- It may have been dead, and cleared away.
  placed = call('ZSCORE', deadlines, ticket)
end

-- Where advance stopped at its bound somebody alive may wait beyond it (P3).
if not held[3] and not stopped then return take() end
if not wait then return answer('busy', more and 1 or 0) end

--#include waiting

local fresh = false
if not placed then
  local waiters = call('ZCARD', deadlines)
  -- Generations of dead waiters do not pile up under a long hold.
  if waiters >= math.min(64, max_waiters) then
    local dead = call('ZRANGEBYSCORE', deadlines, '-inf', now, 'LIMIT', 0, 128)
    if #dead > 0 then
      call('ZREM', deadlines, unpack(dead))
      waiters = waiters - #dead
    end
    if waiters >= max_waiters then return answer('full', waiters) end
  end
  if waiting > 128 then
    --#include compact
    compact()
  end
  call('RPUSH', queue, ticket .. '/' .. label)
  fresh = waiters == 0
end
call('ZADD', deadlines, now + waiter_ttl, ticket)
keep_queue(waiter_ttl, fresh)
return answer('queued', held[3] or free_floor(), call('PTTL', lock), more and 1 or 0)
