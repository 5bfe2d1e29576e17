--#include millis
-- P10: the keys of the queue outlive the furthest deadline by at least half a waiter_ttl and expire soon after it. Both
-- expire together: a ticket in the sorted set whose place has expired would never be served. `known`: the sorted set was
-- there, so that it has a lifetime; otherwise it may have been deleted by hand. Uses: queue, deadlines.
local function keep_queue(waiter_ttl, known)
  local lifetime = call('PTTL', queue)
  -- In a new list the sorted set is new as well, so neither has a lifetime.
  if lifetime >= 1.5 * waiter_ttl then
    if not known then call('PEXPIRE', deadlines, string.format('%d', lifetime)) end
    return
  end
  lifetime = string.format('%d', math.max(2 * waiter_ttl, lifetime))
  call('PEXPIRE', queue, lifetime)
  call('PEXPIRE', deadlines, lifetime)
end
