-- Making one who waits the owner (R6). Uses: lock, grant_ttl, channel, asks, now and grant.lua.
-- `asks` is the client that runs the script, or one of its owners: it is reachable, whatever its
-- subscription does.

local deaf = {} -- clients that a grant was published to in vain

-- Gives the lock to the ticket at a place, if it is alive until `ends_at` and its client hears of
-- it: 'served', 'dead' or 'deaf'. The lock must be free, or `ending`: then its hold ends here, once
-- all that is to be written has been read.
local function serve(place, ticket, ends_at, ending)
  local owner, client, seq, label = string.match(place, '^(([^/:]*):%d+):(%d+)/(.*)$')
  local remaining = owner and ends_at and ends_at - now or 0
  if remaining <= 0 then return 'dead' end
  if deaf[client] then return 'deaf' end
  local token = next_token()
  -- Never longer than the ticket's own deadline, so that many frozen waiters together cost one
  -- waiter time-to-live and not one grant each (P6).
  local lease = remaining < tonumber(grant_ttl) and exact(remaining) or grant_ttl
  -- The message says for how long: the waiter's own settings may differ from ours (R7).
  local message = 'grant ' .. token .. ' ' .. lease .. ' ' .. ticket .. ' ' .. lock
  if call('PUBLISH', channel .. client, message) == 0 and client ~= string.match(asks, '^[^:]*') then
    deaf[client] = true
    return 'deaf'
  end
  if ending then call('DEL', lock) end
  hold(owner, seq, token, lease, label)
  return 'served'
end
