--#include silence
-- Keeps a waiting client alive. Uses: queue, deadlines.

-- `score`: its deadline until now, negative if it was passed over. `is_alone`: its place is the only one. `...`: more
-- scores and members to set. Returns whether the client still counted as alive, so that its places are still there.
local function hear(client, score, is_alone, ...)
  local deadline, forgiven, spent, is_new = math.abs(tonumber(score or '0')), 0, 0, false
  -- Skipped for a client that polls in time, which is more often than every half of a waiter_ttl.
  if deadline - now <= waiter_ttl / 2 and not is_alone then forgiven, spent, is_new = find_silence() end
  if is_new then forgive(forgiven, spent) end
  -- It may have counted as dead, so `!skip` ends.
  if score and tonumber(score) <= now then call('ZREM', deadlines, '!skip') end
  call('ZADD', deadlines, string.format('%d', now + waiter_ttl), client, ...)
  return score and lives_until(deadline, forgiven, spent) > now
end

-- P10: the keys of the queue outlive all deadlines, and expire when the last request of any client is a minute old, or
-- a little more: a server that stalls for a minute must not lose the order. Both expire together, since no call would
-- ever serve a ticket whose place has gone. `known`: the sorted set existed, so it has a TTL; if not, someone may have
-- deleted it by hand.
local function keep_queue(known)
  local lifetime = call('PTTL', queue)
  -- With a new list the sorted set is new as well, so neither has a TTL.
  if lifetime >= math.max(60000, 1.5 * waiter_ttl) then
    if not known then call('PEXPIRE', deadlines, string.format('%d', lifetime)) end
    return
  end
  lifetime = string.format('%d', math.max(90000, 2 * waiter_ttl))
  call('PEXPIRE', queue, lifetime)
  call('PEXPIRE', deadlines, lifetime)
end
