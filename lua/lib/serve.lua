--#include grant
--#include millis
-- How a waiter becomes the holder (R6). Uses: lock, queue, deadlines, channel, caller.
-- `caller` is the client that runs the script, or one of its owners. It reads the reply, so it counts as
-- reachable even while its subscription is down.

-- A place of the queue is `<ticket>/<terms>`, a ticket is `<client>:<n>:<seq>`, and the terms are `<grant_ttl>/<label>`.
local PLACE = '^(([^:/]+):%d+):(%d+)/((%d+)/.*)$'

-- Offers the lock to the place of `owner`, whose client lives until `client_until` (server ms). Returns false if no
-- message reaches the client.
local function offer(token, owner, client, seq, terms, grant_ttl, client_until, ending)
  -- P6: a grant ends with its client's deadline, so many frozen waiters together cost one waiter time-to-live
  -- instead of one grant each.
  local lease = grant_ttl
  if client_until - now < tonumber(grant_ttl) then lease = string.format('%d', client_until - now) end
  -- R7: the message says how long the grant lasts, since the deadline may have made it shorter.
  local message = 'grant ' .. token .. ' ' .. lease .. ' ' .. owner .. ':' .. seq .. ' ' .. lock
  -- pcall: without the right to publish the waiter finds its grant by a poll, and the lock still goes on (A14).
  if redis.pcall('PUBLISH', channel .. client, message) == 0 and client ~= string.match(caller, '^[^:]*') then
    return false
  end
  hold(owner, seq, token, lease, terms, ending)
  return true
end
