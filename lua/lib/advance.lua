--#include examine
-- Finds and serves the next in line (R6), and keeps the queue in order. Included by every script that can find the lock
-- free or free it. Uses: lock, queue, deadlines, tokens, settings, stored, token, caller, frozen.

-- R6: finds the first live ticket whose client is reachable. Writes nothing, and refuses what it cannot read. `heard`: a client
-- that is about to be heard. `more`: it stopped at its bound, and a live ticket may wait behind it. If frozen, all keep their places.
local function look(places, heard)
  local found = { token = token, places = places, passed = 0, cleared = 0, dead = {}, lives = {}, marks = {}, work = 0, more = false }
  --#paste skipped
  while not found.winner and from < places and found.work < WORK_AT_MOST do
    local block, clients, waits, has_living = examine(from, size, found)
    if #block == 0 then break end
    -- Behind the head nothing is to be done about dead and unreachable clients.
    for i = 1, (has_living or found.cleared == from) and #block or 0 do
      local place = block[i]
      local until_ms, at = found.lives[clients[i]], from + i - 1
      if waits[i] and at >= skip then
        found.winner, found.ticket, found.passed = place, before(place, '/'), at
        break
      end
      -- At the head dead places are taken out, and places whose ticket has left.
      local has_left = until_ms > 0 and not waits[i]
      if found.cleared == at and (has_left or until_ms == 0 and #found.dead < BLOCK) then
        found.cleared = at + 1
        if not has_left then found.dead[#found.dead + 1] = before(place, '/') end
      end
    end
    from, size = from + #block, BLOCK
    -- From the places passed over before only the head is read, where dead places are taken out: a block if there are
    -- any.
    if from < skip and (from > 2 or found.cleared < from) then from, size = skip, 2 end
    if not found.winner then found.passed = math.min(from, places) end
  end
  found.more = not found.winner and found.passed < places
  return found
end

-- Gives the lock to the winner that was found, takes out dead places at the head, and notes how many the next call need
-- not read: passed-over places stay. Returns owner and seq of the winner, or nothing. `ending`: the owner whose hold
-- ends; without a winner the caller ends it. `is_own`: the caller is the winner, and takes the lock then. Sets
-- `found.places` to what is left.
local function serve(found, ending, is_own)
  local places, winner, dead, cleared, passed = found.places, found.winner, found.dead, found.cleared, found.passed
  -- P6: refused here, it changes nothing. Without this right the winner would keep its place, and win again and again.
  if winner then call('ZREM', deadlines, '') end
  if found.is_new then forgive(found.forgiven, found.spent) end
  local owner, client, seq, terms, grant_ttl
  if winner and not is_own then
    owner, client, seq, terms, grant_ttl = string.match(winner, PLACE)
    local client_until = found.lives[client]
    --#paste hand_over
  end
  if winner then dead[#dead + 1] = found.ticket end
  -- Far from both ends a place stays, and is passed over because its ticket is gone.
  local stays = winner and math.min(passed, places - passed) > SEARCHED_AT_MOST
  found.places = places - cleared - (winner and not stays and 1 or 0)
  if places > 0 and found.places == 0 then
    call('UNLINK', queue, deadlines)
  elseif places > 0 then
    if passed - cleared >= WORTH_A_NOTE then
      -- The note ends when one of these clients is heard again: its deadline is negative, or over.
      call('ZADD', deadlines, passed - cleared, '!skip', unpack(found.marks))
    elseif found.is_noted then
      dead[#dead + 1] = '!skip'
    end
    if #dead > 0 then call('ZREM', deadlines, unpack(dead)) end
    if winner and passed > cleared and not stays then
      -- From the nearer end: nothing behind or before it is moved.
      call('LREM', queue, 2 * passed > places and -1 or 1, winner)
      places = places - 1
    end
    if places > found.places then call('LTRIM', queue, places - found.places, -1) end
  end
  return owner, seq
end

-- Passes a free lock on, or the lock of `ending`: without a winner it is free then. Returns 1 if a live ticket may wait
-- behind the places that one call reads, else 0.
local function pass_on(found, ending)
  if not serve(found, ending) and ending then call('DEL', lock) end
  return found.more and '1' or '0'
end
