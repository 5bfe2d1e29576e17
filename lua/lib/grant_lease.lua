-- P6: a grant ends with its client's deadline, so all frozen waiters together cost one waiter_ttl, not one grant each.
-- Pasted in place. Uses: grant_ttl, client_until (server ms until which it lives), now.
local lease = grant_ttl
if client_until - now < tonumber(grant_ttl) then lease = string.format('%d', client_until - now) end
