--#include grant
-- How a waiter becomes the holder (R6). Uses: lock, grant_ttl, channel, caller.
-- `caller` is the client that runs the script, or one of its owners. It reads the reply, so it counts as
-- reachable even while its subscription is down.

-- An entry of the queue is `<client>:<n>:<seq>/<label>`: a ticket, and the label of its client.
local function ticket_of(entry)
  return string.match(entry, '^[^/]*')
end

local unreachable = {} -- clients without a subscription, so that each is tried once

-- Grants the lock to the ticket of `entry`, if it lives until `ends_at` and its client receives the grant.
-- Returns 'served', 'dead' or 'unreachable'. The lock must be free, unless `ending`: then the present hold
-- is deleted here, when nothing is left that could fail.
local function serve(entry, ticket, ends_at, ending)
  local owner, client, seq, label = string.match(entry, '^(([^/:]*):%d+):(%d+)/(.*)$')
  local remaining = owner and ends_at and ends_at - now or 0
  if remaining <= 0 then return 'dead' end
  if unreachable[client] then return 'unreachable' end
  local token = next_token()
  -- P6: a grant ends with the ticket's own deadline, so many frozen waiters together cost one waiter
  -- time-to-live instead of one grant each.
  local lease = remaining < tonumber(grant_ttl) and WHOLE:format(remaining) or grant_ttl
  -- R7: the message says how long the grant lasts, since the waiter's settings may differ from the caller's.
  local message = 'grant ' .. token .. ' ' .. lease .. ' ' .. ticket .. ' ' .. lock
  if call('PUBLISH', channel .. client, message) == 0 and client ~= string.match(caller, '^[^:]*') then
    unreachable[client] = true
    return 'unreachable'
  end
  if ending then call('DEL', lock) end
  hold(owner, seq, token, lease, label)
  return 'served'
end
