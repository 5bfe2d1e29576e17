--#include silence
-- A client that waits is heard. Uses: queue, deadlines.

-- `score`: its deadline until now, negative if it was passed over. `is_alone`: no other place is queued. `...`: scores
-- and members to set with its own. Returns whether it had not been given up as dead, so that its places are still
-- there.
local function hear(client, score, is_alone, ...)
  local deadline, forgiven, spent, is_new = math.abs(tonumber(score or '0')), 0, 0, false
  -- A client that polls in time needs no look: it is heard more often than every half of a waiter_ttl.
  if deadline - now <= waiter_ttl / 2 and not is_alone then forgiven, spent, is_new = find_silence() end
  if is_new then forgive(forgiven, spent) end
  -- It may have been counted as dead: `!skip` ends.
  if score and tonumber(score) <= now then call('ZREM', deadlines, '!skip') end
  call('ZADD', deadlines, string.format('%d', now + waiter_ttl), client, ...)
  return score and lives_until(deadline, forgiven, spent) > now
end

-- P10: the keys of the queue outlive all deadlines, and end when no client was heard for a minute or a little longer: a
-- server may stand still for a minute without losing the order. Both end together: a ticket in the sorted set whose
-- place is gone would never be served. `known`: the sorted set was there, so that it has a time to live; otherwise it
-- may have been deleted by hand.
local function keep_queue(known)
  local lifetime = call('PTTL', queue)
  -- In a new list the sorted set is new as well, so neither has one.
  if lifetime >= math.max(60000, 1.5 * waiter_ttl) then
    if not known then call('PEXPIRE', deadlines, string.format('%d', lifetime)) end
    return
  end
  lifetime = string.format('%d', math.max(90000, 2 * waiter_ttl))
  call('PEXPIRE', queue, lifetime)
  call('PEXPIRE', deadlines, lifetime)
end
