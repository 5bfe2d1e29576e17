--#include hear
--#include before
--#include lease
-- Queueing. Uses: queue, deadlines, settings, client, ticket, terms, frozen, echo, current (the token of the holder),
-- max_waiters.

-- Takes a place in the queue, unless the ticket has one. Returns whether its client still counted as alive, and how
-- many places there are if this one is new.
local function join()
  local scores = read('ZMSCORE', deadlines, client, ticket)
  local places
  if not scores[2] or call('EXISTS', queue) == 0 then
    --#paste own_place
    places = read('RPUSHX', queue, place)
    if places == 0 then
      -- If tickets exist, someone deleted their list by hand. Drop them before the new list begins, since nothing else
      -- ends a ticket without a place. (R13: if the list is absent, no script runs in a slot that moves.)
      call('UNLINK', deadlines)
      scores, places = {}, call('RPUSH', queue, place)
    end
  end
  local known = hear(client, scores[1], places == 1, 'inf', ticket)
  -- For a known client too: waits shorter than its poll interval may keep a queue from ever emptying, and then no
  -- client polls (P10).
  keep_queue(scores[1])
  return known, places
end

-- The answer after `join`. `floor`: every later grant has a greater token (R7). `held_by`: a space and the grant of
-- another holder, or nothing. `places`: how many there are, if this call added one; beyond `max_waiters` it takes that
-- place back.
local function queued(floor, more, held_by, known, places)
  local max_waiters = tonumber(string.match(settings, '^%d+ (%d+)'))
  if places and places > max_waiters then
    --#include sweep
    local waiters, again
    waiters, places, again = sweep(places)
    -- The list has a bound too: it may contain places whose ticket has left, which later calls pass over.
    if waiters >= max_waiters or places > 2 * max_waiters then
      call('RPOP', queue)
      -- A client that waits for nothing else goes too; otherwise refused clients would pile up.
      call('ZREM', deadlines, ticket, known and ticket or client)
      return 'full ' .. echo .. ' ' .. waiters .. ((again or more == '1') and ' 1' or ' 0')
    end
  end
  -- Clients that have left for good would pile up under a queue that never ends.
  if places and not known and call('ZCARD', deadlines) > 2 * places + 64 then
    call('ZREM', deadlines, '!skip', unpack(call('ZRANGEBYSCORE', deadlines, -now, now, 'LIMIT', '0', '200')))
  end
  --#paste queued
end
