#!lua flags=allow-oom
-- poll: keeps the tickets of one client alive, passes a free lock on, and tells the state of each ticket (R8).
-- Without tickets it only passes the lock on.
--
-- KEYS[1] lock       hash     owner -> holds, and !attempt, !token, !label
-- KEYS[2] queue      list     entries, ticket/label, oldest first
-- KEYS[3] deadlines  zset     ticket -> server ms at which it is dead
-- KEYS[4] tokens     string   the last token given
-- ARGV[1] request    growing number, returned as it is
-- ARGV[2] waiter_ttl ms that a ticket lives without a poll
-- ARGV[3] grant_ttl  ms that a grant lives until it is confirmed
-- ARGV[4] token_ttl  ms
-- ARGV[5] channel    prefix of the clients' channels
-- ARGV[6] caller     the client that polls
-- ARGV[7...] tickets pairs: ticket, lease ms that it asks for
--
-- Returns polled, request, now, more, floor, lease left ms of the holder or -1, first ticket of
-- the queue or '', then four values for each ticket that is not just queued:
--   its number, granted, token, lease left ms      it owns the lock, now with its full lease
--   its number, unknown, '', 0                     it is not in the queue: ask again
-- `more` is 1 when the queue holds more dead tickets than one call clears: poll again at once.
--
-- Keeps: no ticket gets a place in the queue that it did not have. A second run answers the same and extends
-- the same deadlines.
local lock, queue, deadlines, tokens = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local request, waiter_ttl, grant_ttl, token_ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local channel, caller = ARGV[5], ARGV[6]

--#include advance

-- Only the attempt and the token are needed here: no owner has the name ''.
local _, attempt, token = read_lock('')
check_token(token)
local waiting = read('LLEN', queue)
read('ZCARD', deadlines)
last_token()

local tickets, leases = {}, {}
for i = 7, #ARGV, 2 do
  tickets[#tickets + 1], leases[#leases + 1] = ARGV[i], tonumber(ARGV[i + 1])
end

-- Renew first, then pass on: a client that polls is alive, even if a deadline passed a moment ago.
local placed, renewals = {}, {}
if #tickets > 0 then placed = call('ZMSCORE', deadlines, unpack(tickets)) end
local deadline = WHOLE:format(now + waiter_ttl)
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
  _, attempt, token = read_lock('')
end
if waiting > 0 then keep_queue(waiter_ttl, false) end

local granted = attempt and ':' .. attempt -- how the ticket that owns the lock ends
local reply = { 'polled', request, now, more and 1 or 0, token or free_floor(), 0, ticket_of(call('LINDEX', queue, 0) or '') }
for i, ticket in ipairs(tickets) do
  local n = #reply
  -- The seq is compared first, which is cheaper than a call for each ticket. Other clients may use the same seq.
  local same_seq = granted and string.sub(ticket, -#granted) == granted
  if same_seq and call('HEXISTS', lock, string.sub(ticket, 1, -#granted - 1)) == 1 then
    local remaining = call('PTTL', lock)
    if remaining < leases[i] then
      remaining = leases[i]
      call('PEXPIRE', lock, remaining)
    end
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = i, 'granted', token, remaining
  elseif not (placed[i] and (token or stopped)) then
    -- The lock is free, nothing is left to clear, and advance did not reach this ticket: its entry in the list
    -- is lost. Without its deadline it counts as unknown, and the client joins the queue again.
    if placed[i] then call('ZREM', deadlines, ticket) end
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = i, 'unknown', '', 0
  end
end
reply[6] = lease_left()
return reply
