#!lua flags=allow-oom
-- acquire: asks for the lock once, for one attempt (owner, seq); also one more hold on what the
-- owner has.
--
-- KEYS[1] lock       hash     owner -> holds, and !attempt, !token, !label
-- KEYS[2] queue      list     tickets, oldest first
-- KEYS[3] deadlines  zset     ticket -> server ms at which it is dead
-- KEYS[4] tokens     string   the last token given
-- KEYS[5] labels     hash     ticket -> label
-- KEYS[6] left       string   tombstone of this owner: the seq up to which it has left (R3)
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
-- ARGV[14] present   the client that asks
-- ARGV[15] label     of the client
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
local lock, queue, deadlines, tokens, labels, left = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local request, not_after, owner, seq = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local holds, token, wait, lease = tonumber(ARGV[5]), ARGV[6], ARGV[7] == '1', tonumber(ARGV[8])
local waiter_ttl, max_waiters, grant_ttl, token_ttl = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11]), ARGV[12]
local channel, present, label = ARGV[13], ARGV[14], ARGV[15]

--#include base
--#include clock
--#include grant

local function answer(status, ...)
  return { status, request, now, ... }
end

-- The lock is free, and this attempt's.
local function take()
  local fresh = next_token()
  hold(owner, ARGV[4], fresh, ARGV[8], label)
  return answer('held', fresh, 1, lease, 0)
end

if now > not_after then return answer('late') end

-- The usual case, and the short way: nobody holds it, nobody waits, and this owner has not left.
if holds == 0 and redis.call('EXISTS', lock, queue, left) == 0 then return take() end

--#include advance

local ticket = owner .. ':' .. ARGV[4]

-- The lease never shrinks here: somebody may already rely on the longer one.
local function held_by_us(count, its_token)
  local remaining = redis.call('PTTL', lock)
  if remaining < lease then
    redis.call('PEXPIRE', lock, lease)
    remaining = lease
  end
  return answer('held', its_token, tonumber(count), remaining, 0)
end

local buried = read('GET', left)
if buried and tonumber(buried) >= seq then return answer('left') end
local held = read('HMGET', lock, owner, '!attempt', '!token')
known(held[3], lock)
local last = tonumber(held[2]) or 0

if holds > 0 then
  if not held[1] or held[3] ~= token then return answer('lost') end
  if last > seq then return answer('stale') end
  -- Set, never added to: a retry finds the number it would have set (R1).
  if last < seq then redis.call('HSET', lock, owner, holds + 1, '!attempt', ARGV[4]) end
  return held_by_us(last == seq and held[1] or holds + 1, token)
end

if held[1] and last == seq then return held_by_us(held[1], held[3]) end
if held[1] and last > seq then return answer('stale') end

local waiting, placed = read('LLEN', queue), nil
if held[3] or waiting > 0 then
  -- Contended: the other keys may be written, so look at their types first.
  placed = read('ZSCORE', deadlines, ticket)
  read('HEXISTS', labels, present)
  last_token()
end

-- By asking anew the owner says that its earlier hold is over: that hold was lost to it.
if held[1] then
  redis.call('DEL', lock)
  held[3] = false
end

local more, stopped = false, false
if not held[3] and waiting > 0 then
  more, stopped = advance()
  held = redis.call('HMGET', lock, owner, '!attempt', '!token')
  if held[1] and tonumber(held[2]) == seq then return held_by_us(held[1], held[3]) end
  -- It may have been dead, and cleared away.
  placed = redis.call('ZSCORE', deadlines, ticket)
end

-- Where advance stopped at its bound somebody alive may wait beyond it (P3).
if not held[3] and not stopped then return take() end
if not wait then return answer('busy', more and 1 or 0) end

--#include waiting

local fresh = false
if not placed then
  local waiters = redis.call('ZCARD', deadlines)
  -- Generations of dead waiters do not pile up under a long hold.
  if waiters >= math.min(64, max_waiters) then
    local dead = redis.call('ZRANGEBYSCORE', deadlines, '-inf', now, 'LIMIT', 0, 128)
    if #dead > 0 then
      redis.call('ZREM', deadlines, unpack(dead))
      redis.call('HDEL', labels, unpack(dead))
      waiters = waiters - #dead
    end
    if waiters >= max_waiters then return answer('full', waiters) end
  end
  if waiting > 128 then
    --#include compact
    compact()
  end
  redis.call('RPUSH', queue, ticket)
  redis.call('HSET', labels, ticket, label)
  fresh = waiters == 0
end
redis.call('ZADD', deadlines, now + waiter_ttl, ticket)
keep_queue(waiter_ttl, fresh)
return answer('queued', held[3] or free_floor(), redis.call('PTTL', lock), more and 1 or 0)
