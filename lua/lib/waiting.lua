-- What no later grant falls below when nobody holds the lock (R7).
local function free_floor()
  return exact(math.max(last_token(), clock[1] * 1000000 + clock[2]))
end

-- The queue's keys outlive the furthest deadline by half a waiter_ttl at least, and die soon after:
-- no name leaks keys (P10). Both at once: a ticket whose place in the list expired before its entry
-- in the sorted set would be told that it is queued, and never be served. `fresh`: the sorted set
-- is new; otherwise both have the same lifetime.
local function keep_queue(waiter_ttl, fresh)
  local left = call('PTTL', queue)
  if not fresh and left >= 1.5 * waiter_ttl then return end
  local lifetime = math.max(2 * waiter_ttl, left)
  call('PEXPIRE', queue, lifetime)
  call('PEXPIRE', deadlines, lifetime)
end
