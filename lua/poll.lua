#!lua flags=allow-oom
-- poll: keeps tickets of one client alive, passes a free or expired lock on, and tells where each
-- ticket stands (R8). Without tickets it only passes the lock on.
--
-- KEYS[1] lock       hash     owner -> holds, and !attempt, !token, !label
-- KEYS[2] queue      list     places, ticket/label, oldest first
-- KEYS[3] deadlines  zset     ticket -> server ms at which it is dead
-- KEYS[4] tokens     string   the last token given
-- ARGV[1] request    growing number, echoed
-- ARGV[2] waiter_ttl ms that a ticket lives without a poll
-- ARGV[3] grant_ttl  ms that a grant lives until it is confirmed
-- ARGV[4] token_ttl  ms
-- ARGV[5] channel    prefix of the clients' channels
-- ARGV[6] asks       the client that asks
-- ARGV[7...] pairs   ticket, lease ms that it wants
--
-- Returns polled, request, now, more, floor, lease left ms of the holder or -1, first ticket of
-- the queue or '', then four values for each ticket that is not just queued:
--   its number, granted, token, lease left ms      it owns the lock, now with its full lease
--   its number, unknown, '', 0                     it has no place: ask anew
-- `more` is 1 when the queue holds more dead tickets than one call clears: poll again at once.
--
-- Keeps: it gives no ticket a place that it had not. A second run answers the same and extends
-- the same deadlines.
local lock, queue, deadlines, tokens = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local request, waiter_ttl, grant_ttl, token_ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local channel, asks = ARGV[5], ARGV[6]

--#include base
--#include clock
--#include grant
--#include place
--#include serve
--#include look
--#include advance
--#include known
--#include waiting

local held = read('HMGET', lock, '!token', '!attempt')
local token, attempt = known(held[1], lock), held[2]
local waiting = read('LLEN', queue)
read('ZCARD', deadlines)
last_token()

local tickets, leases = {}, {}
for i = 7, #ARGV, 2 do
  tickets[#tickets + 1], leases[#leases + 1] = ARGV[i], tonumber(ARGV[i + 1])
end

-- Renew first, then pass on: whoever asks is alive, even when its deadline passed a moment ago.
local placed, renewals = {}, {}
if #tickets > 0 then placed = call('ZMSCORE', deadlines, unpack(tickets)) end
local deadline = exact(now + waiter_ttl)
for i, ticket in ipairs(tickets) do
  if placed[i] then
    renewals[#renewals + 1] = deadline
    renewals[#renewals + 1] = ticket
  end
end
if #renewals > 0 then call('ZADD', deadlines, 'XX', unpack(renewals)) end

local more, stopped = false, false
if not token and waiting > 0 then
  more, stopped = advance()
  held = call('HMGET', lock, '!token', '!attempt')
  token, attempt = held[1], held[2]
end
if waiting > 0 then keep_queue(waiter_ttl, false) end

local function granted(ticket, lease)
  if not attempt or string.sub(ticket, -#attempt - 1) ~= ':' .. attempt then return nil end
  local owner = string.sub(ticket, 1, -#attempt - 2)
  if call('HEXISTS', lock, owner) == 0 then return nil end
  local remaining = call('PTTL', lock)
  if remaining >= lease then return remaining end
  call('PEXPIRE', lock, lease)
  return lease
end

local reply = { 'polled', request, now, more and 1 or 0, token or free_floor(), 0, ticket_of(call('LINDEX', queue, 0) or '') }
local function tell(...)
  for _, value in ipairs({ ... }) do reply[#reply + 1] = value end
end
for i, ticket in ipairs(tickets) do
  local remaining = granted(ticket, leases[i])
  if remaining then
    tell(i, 'granted', token, remaining)
  elseif not (placed[i] and (token or stopped)) then
    -- Free, nobody left to clear, and still this ticket was not reached: the list lost it.
    if placed[i] then call('ZREM', deadlines, ticket) end
    tell(i, 'unknown', '', 0)
  end
end
reply[6] = call('PTTL', lock)
return reply
