#!lua flags=allow-oom
-- poll: keeps tickets of one client alive, passes a free or expired lock on, and tells where each
-- ticket stands (R8). Without tickets it only passes the lock on.
--
-- KEYS[1] lock       hash     owner -> holds, and !attempt, !token, !label
-- KEYS[2] queue      list     tickets, oldest first
-- KEYS[3] deadlines  zset     ticket -> server ms at which it is dead
-- KEYS[4] tokens     string   the last token given
-- KEYS[5] labels     hash     ticket -> label
-- ARGV[1] request    growing number, echoed
-- ARGV[2] waiter_ttl ms that a ticket lives without a poll
-- ARGV[3] grant_ttl  ms that a grant lives until it is confirmed
-- ARGV[4] token_ttl  ms
-- ARGV[5] channel    prefix of the clients' channels
-- ARGV[6] present    the client that asks
-- ARGV[7...] pairs   ticket, lease ms that it wants
--
-- Returns polled, request, now, more, floor, lease left ms of the holder or -1, first ticket of
-- the queue or '', then for each ticket, in the order asked, three values:
--   granted, token, lease left ms      it owns the lock, now with its full lease
--   queued, '', 0
--   unknown, '', 0                     it has no place: ask anew
-- `more` is 1 when the queue holds more dead tickets than one call clears: poll again at once.
--
-- Keeps: it gives no ticket a place that it had not. A second run answers the same and extends
-- the same deadlines.
local lock, queue, deadlines, tokens, labels = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local request, waiter_ttl, grant_ttl, token_ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local channel, present = ARGV[5], ARGV[6]

--#include base
--#include clock
--#include grant
--#include advance

local token = known(read('HGET', lock, '!token'), lock)
local waiting = read('LLEN', queue)
read('ZCARD', deadlines)
read('HEXISTS', labels, present)
last_token()

-- Renew first, then pass on: whoever asks is alive, even when its deadline passed a moment ago.
local placed = {}
for i = 7, #ARGV, 2 do
  local ticket = ARGV[i]
  placed[ticket] = redis.call('ZSCORE', deadlines, ticket) and true or false
  if placed[ticket] then redis.call('ZADD', deadlines, 'XX', now + waiter_ttl, ticket) end
end

local more, stopped = false, false
if not token and waiting > 0 then
  more, stopped = advance()
  token = redis.call('HGET', lock, '!token')
end
if waiting > 0 then keep_queue(waiter_ttl) end

local function granted(ticket, lease)
  local owner, _, seq = parts(ticket)
  if not token or not owner then return nil end
  local held = redis.call('HMGET', lock, owner, '!attempt')
  if not held[1] or held[2] ~= seq then return nil end
  local remaining = redis.call('PTTL', lock)
  if remaining >= lease then return remaining end
  redis.call('PEXPIRE', lock, lease)
  return lease
end

local answers = {}
local function add(status, its_token, remaining)
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = status, its_token, remaining
end
for i = 7, #ARGV, 2 do
  local ticket = ARGV[i]
  local remaining = granted(ticket, tonumber(ARGV[i + 1]))
  if remaining then
    add('granted', token, exact(remaining))
  elseif placed[ticket] and (token or stopped) then
    add('queued', '', 0)
  else
    -- Free, nobody left to clear, and still this ticket was not reached: the list lost it.
    if placed[ticket] then redis.call('ZREM', deadlines, ticket) end
    add('unknown', '', 0)
  end
end

local reply = {
  'polled', request, now, more and 1 or 0, token or free_floor(),
  redis.call('PTTL', lock), redis.call('LINDEX', queue, 0) or '',
}
for _, value in ipairs(answers) do reply[#reply + 1] = value end
return reply
