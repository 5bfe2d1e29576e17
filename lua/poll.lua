#!lua flags=allow-oom
-- poll: a client that waits for a name is heard; passes a free lock on; says who holds it, and which of a few
-- tickets have no place (R8). Its cost does not depend on how many wait.
--
-- KEYS[1] lock       hash     owner -> holds, and !grant
-- KEYS[2] queue      list     places, oldest first
-- KEYS[3] deadlines  zset     client -> server ms at which it is dead; ticket -> inf
-- KEYS[4] tokens     string   the last token given
-- ARGV[1] request    growing number, returned as it is
-- ARGV[2] caller     the client that polls
-- ARGV[3] waiter_ttl ms that it lives without being heard; 0 for a client that waits for nothing and only passes
--                    the lock on
-- ARGV[4] token_ttl  ms
-- ARGV[5] channel    prefix of the clients' channels
-- ARGV[6...] tickets to look for
--
-- Returns one text: polled, request, server time (s and us), more, known (1: the client had not been given up as
-- dead), places, first (1: the client was first in line before this call), then of the holder: owner or -, attempt,
-- token or 0, then floor, lease left ms or -2, and the numbers of the tickets that have no place.
-- `more` is 1 when the lock is free and a live ticket may wait behind those that one call looks at: poll at once.
--
-- Keeps: no ticket gets a place in the queue that it did not have. A second run answers the same, but for `known`,
-- and extends the same deadlines.
local lock, queue, deadlines, tokens = unpack(KEYS)
local request, caller, waiter_ttl, token_ttl, channel = unpack(ARGV)

--#include millis
--#include holder

local owner, attempt, current = read_holder()
-- Without an owner it is nobody's: a script was refused in the middle, or a field was deleted by hand.
local token = owner and current
local places, first, known, missing = read('LLEN', queue), '0', '0', ''
local scores = read('ZMSCORE', deadlines, caller, unpack(ARGV, 6))

local first_place = places > 0 and waiter_ttl ~= '0' and call('LINDEX', queue, '0')
local first_client = first_place and string.match(first_place, '^([^:/]+):%d+:%d+/%d+/')
local floor, lease, more, serve_next = token, -2, '0', nil
if not token or first_place and not first_client then
  --#include advance
  -- All that may be refused comes before the first write.
  if first_place and not first_client then refuse_place(first_place) end
  if not token then floor = free_floor(current) end
  -- Under a name that is seen behind this block.
  if not token and places > 0 then serve_next = advance end
end

-- Hear first, then pass on: a client that polls is alive, even if its deadline passed a moment ago.
if places == 0 then
  -- The list was deleted by hand, or never was: no ticket has a place.
  scores = {}
  call('DEL', deadlines)
elseif waiter_ttl ~= '0' then
  --#include skip
  --#include keep
  if first_client == caller then first = '1' end
  -- Alive until now: a dead client may have lost places.
  if scores[1] and math.abs(tonumber(scores[1])) > now then known = '1' end
  forget_skip(caller)
  call('ZADD', deadlines, string.format('%d', now + waiter_ttl), caller)
  keep_queue(tonumber(waiter_ttl), scores[1])
end
for i = 6, #ARGV do
  if not scores[i - 4] then missing = missing .. ' ' .. i - 5 end
end

if token then
  --#include lease
  lease = lease_left()
elseif serve_next then
  local winner, seq, its_token, stopped, rest, ending = serve_next(places, current, current and '')
  places = rest
  if winner then
    owner, attempt, token, floor, lease = winner, seq, its_token, its_token, call('PTTL', lock)
  else
    -- Nobody hears of it.
    if ending then call('DEL', lock) end
    if stopped then more = '1' end
  end
end
return 'polled ' .. echo .. ' ' .. more .. ' ' .. known .. ' ' .. places .. ' ' .. first .. ' ' .. (owner or '-') .. ' ' .. (attempt or '0') .. ' '
  .. (token or '0') .. ' ' .. floor .. ' ' .. lease .. missing
