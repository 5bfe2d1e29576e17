#!lua flags=allow-oom
-- acquire: one request for the lock, by one attempt (owner, seq). For an owner that holds it already: one
-- more hold.
--
-- KEYS[1] lock       hash     owner -> holds, and !grant
-- KEYS[2] queue      list     places, oldest first
-- KEYS[3] deadlines  zset     client -> server ms at which it is dead; ticket -> inf
-- KEYS[4] tokens     string   the last token given
-- KEYS[5] tombstone  string   the seq up to which this owner has left (R3)
-- KEYS[6] boot       string   when it was started, see boot.lua; only with strict_restart
-- ARGV[1] request    growing number, returned as it is
-- ARGV[2] not_after  server us after which the request is refused (R2)
-- ARGV[3] owner      <client>:<n>
-- ARGV[4] seq        of the attempt; a retry repeats it (R1)
-- ARGV[5] mode       0: do not wait, 1: join the queue if the lock is not free, n:token: one more hold for an owner that
--                    has n under this token
-- ARGV[6] lease      ms
-- ARGV[7] terms      of the call, for the time that it waits: grant_ttl (ms that a grant to it lives until it is
--                    confirmed), /, and its label
-- ARGV[8] settings   of the client, with spaces: waiter_ttl (ms that it lives without being heard), max_waiters,
--                    token_ttl (ms), channel (prefix of the clients' channels)
--
-- Returns one text: status, request, server time (s and us), and
--   held, token, holds, lease left ms
--   queued, floor (every later grant has a token above it), lease left ms of the holder or of the freeze, or negative,
--                      more, known (1: the client had not been given up as dead)
--   busy, more         not free, and its caller does not wait, or has to ask again: more is 1
--   full, waiters, more   max_waiters are queued
--   lost               one more, but the owner does not hold under that token
--   late | left | stale  not_after has passed | a tombstone | a later attempt of the owner was served
-- `more` is 1 when another call would look at more of the queue: poll, or ask again, at once.
--
-- Keeps: one owner at most; a free lock goes to the first live ticket, which no newcomer overtakes (P3); a retry
-- of the same seq gets the same answer and changes at most the lease (R1). A second run is such a retry.
local lock, queue, deadlines, tokens, tombstone, boot = unpack(KEYS)
local request, not_after, owner, seq, mode, lease, terms, settings = unpack(ARGV)
local token_ttl, frozen

--#include grant

-- R2: the client has given this copy up. Served now, it would take a lock that no guard gives back.
if exceeds(now_us, not_after) then return 'late ' .. echo end
if boot then
  --#include freeze
end

-- The short ways, and the usual cases. They end before the functions of the long way are made, since making one costs
-- as much as a small call. First: the lock is free, the queue is empty (P3), and this owner has not left (R3).
if #mode == 1 and not frozen and call('EXISTS', lock, queue, tombstone) == 0 then
  local token = next_token()
  hold(owner, seq, token, lease, terms)
  return 'held ' .. echo .. ' ' .. token .. ' 1 ' .. lease
end

-- R3: a copy that arrives after the owner has left must neither take the lock nor join the queue.
local left_up_to = read('GET', tombstone)
if left_up_to and tonumber(left_up_to) >= tonumber(seq) then return 'left ' .. echo end
local fields = read('HMGET', lock, owner, '!grant')
local our_holds, attempt, current = fields[1], string.match(fields[2] or '', GRANT)

--#include millis

--#include keep

-- Joins the queue, or says that the lock is not free. `floor`: no later grant has a token up to it (R7).
local function join(floor, more)
  if mode == '0' then return 'busy ' .. echo .. ' ' .. more end
  local ticket, waiter_ttl, max_waiters = owner .. ':' .. seq, string.match(settings, '^(%d+) (%d+)')
  local client = string.sub(owner, 1, string.find(owner, ':', 1, true) - 1)
  local placed, places, is_new, has_ticket = read('ZSCORE', deadlines, ticket), nil, false, false
  if placed and call('EXISTS', queue) == 0 then placed = false end
  if not placed then
    local place = ticket .. '/' .. terms
    places = read('RPUSHX', queue, place)
    is_new = places == 0
    if is_new then
      -- If there are tickets, their list was deleted by hand. They end before the new one begins: refused in between, it
      -- must not find them, since nothing else ends a ticket that has no place. (R13: a list that was absent keeps a
      -- script from running in a slot that moves.)
      call('DEL', deadlines)
      places = call('RPUSH', queue, place)
    end
    max_waiters = tonumber(max_waiters)
    if places > max_waiters then
      --#include sweep
      -- Before the sweep, which would empty and so delete the sorted set where all others are dead (R13).
      call('ZADD', deadlines, 'inf', ticket)
      has_ticket = true
      local waiters, again
      waiters, places, again = sweep(places)
      -- The list is bounded too: it may have places of those who left, which are passed over later.
      if waiters >= max_waiters or places > 2 * max_waiters then
        call('RPOP', queue)
        call('ZREM', deadlines, ticket)
        return 'full ' .. echo .. ' ' .. waiters .. (again and ' 1' or ' 0')
      end
    end
  end
  if placed or places > WORTH_A_NOTE then
    --#include skip
    forget_skip(client)
  end
  local added = call('ZADD', deadlines, string.format('%d', now + waiter_ttl), client, 'inf', ticket)
  local known = added + ((placed or has_ticket) and 1 or 0) < 2
  -- Also for a client that is known: waits that are shorter than its poll interval may keep a queue from ever being
  -- empty, and then nobody polls (P10).
  if not known or is_new or call('PTTL', queue) < 1.5 * waiter_ttl then
    keep_queue(tonumber(waiter_ttl), known)
    -- Clients that were here once would pile up under a queue that never ends.
    local members = call('ZCARD', deadlines)
    if members > 2 * (places or members) + 64 then call('ZREMRANGEBYSCORE', deadlines, -now, now) end
  end
  --#include lease
  local remaining = floor == current and lease_left() or frozen or -2
  return 'queued ' .. echo .. ' ' .. floor .. ' ' .. remaining .. ' ' .. more .. (known and ' 1' or ' 0')
end

-- Second: somebody else has it.
if current and not our_holds and #mode == 1 then return join(current, '0') end

-- The lease never gets shorter here: the client may already rely on the longer one (R5).
local function held(token, holds)
  local remaining = call('PTTL', lock)
  if remaining < tonumber(lease) then
    call('PEXPIRE', lock, lease)
    remaining = lease
  end
  return 'held ' .. echo .. ' ' .. token .. ' ' .. holds .. ' ' .. remaining
end

local last, this = tonumber(attempt or '0'), tonumber(seq)
if #mode > 1 then
  local holds, token = string.match(mode, '^(%d+):(.*)$')
  if not our_holds or current ~= token then return 'lost ' .. echo end
  if last > this then return 'stale ' .. echo end
  -- R1: set, never added to, so a retry finds the number that it would have set.
  if last == this then return held(token, our_holds) end
  holds = string.format('%d', holds + 1)
  call('HSET', lock, owner, holds, '!grant', (string.gsub(fields[2], '^%d+', seq)))
  return held(token, holds)
end
if our_holds and last == this then return held(current, our_holds) end
if our_holds and last > this then return 'stale ' .. echo end

local caller, channel = owner, string.match(settings, '^%d+ %d+ %d+ (.*)$')
--#include advance
if not current then refuse_foreign_hash() end
local places = read('LLEN', queue)
read('ZCARD', deadlines)
next_token()

-- If our_holds: the owner asks for a first hold, so it has lost the earlier one and that leave is still on its way.
local ending = our_holds and owner
local winner, its_seq, its_token, stopped, left = nil, nil, nil, false, 0
if places > 0 then
  -- A retry whose client was taken for dead: it is alive, and its place counts.
  local client = string.match(owner, '^[^:]*')
  if read('ZSCORE', deadlines, owner .. ':' .. seq) then
    local waiter_ttl = tonumber(string.match(settings, '^%d+'))
    call('ZREM', deadlines, '!skip')
    call('ZADD', deadlines, string.format('%d', now + waiter_ttl), client)
    keep_queue(waiter_ttl, true)
  end
  winner, its_seq, its_token, stopped, left, ending = advance(places, current, ending)
end
if winner == owner and its_seq == seq then return held(its_token, '1') end
if winner then
  -- R13: the keys of a queue that has just ended cannot be written again in this call. The next one finds the lock held.
  if left == 0 then return 'busy ' .. echo .. ' ' .. mode end
  current = its_token
  return join(its_token, '0')
end
-- P3: where advance stopped at its bound, a live ticket may wait behind the bound.
if not stopped and not frozen then
  -- A ticket without a place, since it was not served.
  if left > 0 then call('ZREM', deadlines, owner .. ':' .. seq) end
  local token = next_token(current)
  hold(owner, seq, token, lease, terms, ending)
  return 'held ' .. echo .. ' ' .. token .. ' 1 ' .. lease
end
-- The lock is free, and this bound holds for the token of the next grant: an older one that is still on its way to
-- the client does not pass it.
local floor = free_floor(current)
if ending then
  call('DEL', lock)
  -- After a clock that went back the floor can be this token, and the key must not be looked at again (R13).
  current = nil
end
return join(floor, frozen and '0' or '1')
