--#include hear
--#include before
--#include lease
-- Queueing. Uses: queue, deadlines, settings, client, ticket, terms, frozen, echo, current (the token of the holder), max_waiters.

-- Takes a place in the queue, unless it has one. Returns whether its client had not been given up as dead, and how many
-- places there are, if it is a new one.
local function join()
  local scores = read('ZMSCORE', deadlines, client, ticket)
  local places
  if not scores[2] or call('EXISTS', queue) == 0 then
    --#paste own_place
    places = read('RPUSHX', queue, place)
    if places == 0 then
      -- If there are tickets, their list was deleted by hand. They end before the new one begins, since nothing else ends a
      -- ticket that has no place. (R13: a list that was absent keeps a script from running in a slot that moves.)
      call('UNLINK', deadlines)
      scores, places = {}, call('RPUSH', queue, place)
    end
  end
  local known = hear(client, scores[1], places == 1, 'inf', ticket)
  -- Also for a known client: waits shorter than its poll interval may keep a queue from ever being empty, and then no
  -- client polls (P10).
  keep_queue(scores[1])
  return known, places
end

-- The answer after `join`. `floor`: no later grant has a token up to it (R7). `held_by`: a space and the grant of another holder, or
-- nothing. `places`: how many there are, if this call added one; beyond `max_waiters` it is taken back.
local function queued(floor, more, held_by, known, places)
  local max_waiters = tonumber(string.match(settings, '^%d+ (%d+)'))
  if places and places > max_waiters then
    --#include sweep
    local waiters, again
    waiters, places, again = sweep(places)
    -- The list is bounded too: it may have places whose ticket has left, which are passed over later.
    if waiters >= max_waiters or places > 2 * max_waiters then
      call('RPOP', queue)
      -- A client that waits for nothing else has no member, so that refused clients do not pile up.
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
