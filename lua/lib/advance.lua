--#include examine
-- Finds and serves the next in line (R6), and tidies the queue. Every script that can free the lock, or find it free,
-- includes this. Uses: lock, queue, deadlines, tokens, settings, stored, token, caller, frozen.

-- R6: finds the first live ticket whose client is reachable. Writes nothing, and refuses malformed data. `heard`: a
-- client that the caller is about to `hear`. `more`: the search stopped at its bound, and a live ticket may follow.
-- During a freeze all keep their places.
local function look(places, heard)
  local found = { token = token, places = places, passed = 0, cleared = 0, dead = {}, lives = {}, marks = {}, work = 0, more = false }
  --#paste skipped
  while not found.winner and from < places and found.work < WORK_AT_MOST do
    local block, clients, waits, has_living = examine(from, size, found)
    if #block == 0 then break end
    -- Past the head, skip a block without live clients.
    for i = 1, (has_living or found.cleared == from) and #block or 0 do
      local place = block[i]
      local until_ms, at = found.lives[clients[i]], from + i - 1
      if waits[i] and at >= skip then
        found.winner, found.ticket, found.passed = place, before(place, '/'), at
        break
      end
      -- At the head, take out dead places and places whose ticket has left.
      local has_left = until_ms > 0 and not waits[i]
      if found.cleared == at and (has_left or until_ms == 0 and #found.dead < BLOCK) then
        found.cleared = at + 1
        if not has_left then found.dead[#found.dead + 1] = before(place, '/') end
      end
    end
    from, size = from + #block, BLOCK
    -- Of the places that earlier calls passed over, read only the head, and one block more if the head is dead.
    if from < skip and (from > 2 or found.cleared < from) then from, size = skip, 2 end
    if not found.winner then found.passed = math.min(from, places) end
  end
  found.more = not found.winner and found.passed < places
  return found
end

-- Gives the lock to the winner that `look` found, takes out dead places at the head, and notes how many passed-over
-- places the next call can skip. Returns owner and seq of the winner, or nothing. `ending`: the owner whose hold ends;
-- without a winner the caller ends it. `is_own`: the caller is the winner, and takes the lock itself afterwards. Sets
-- `found.places` to the number left.
local function serve(found, ending, is_own)
  local places, winner, dead, cleared, passed = found.places, found.winner, found.dead, found.cleared, found.passed
  -- P6: a missing right to ZREM must stop the script here, before it changes anything. Otherwise the winner would keep
  -- its place, and win again and again.
  if winner then call('ZREM', deadlines, '') end
  if found.is_new then forgive(found.forgiven, found.spent) end
  local owner, client, seq, terms, grant_ttl
  if winner and not is_own then
    owner, client, seq, terms, grant_ttl = string.match(winner, PLACE)
    local client_until = found.lives[client]
    --#paste hand_over
  end
  if winner then dead[#dead + 1] = found.ticket end
  -- Far from both ends the winner's place stays; later calls pass over it because its ticket has gone.
  local stays = winner and math.min(passed, places - passed) > SEARCHED_AT_MOST
  found.places = places - cleared - (winner and not stays and 1 or 0)
  if places > 0 and found.places == 0 then
    call('UNLINK', queue, deadlines)
  elseif places > 0 then
    if passed - cleared >= WORTH_A_NOTE then
      -- `hear` ends the note when one of these clients is back: its deadline is negative or has passed.
      call('ZADD', deadlines, passed - cleared, '!skip', unpack(found.marks))
    elseif found.is_noted then
      dead[#dead + 1] = '!skip'
    end
    if #dead > 0 then call('ZREM', deadlines, unpack(dead)) end
    if winner and passed > cleared and not stays then
      -- From the nearer end; the rest of the list does not move.
      call('LREM', queue, 2 * passed > places and -1 or 1, winner)
      places = places - 1
    end
    if places > found.places then call('LTRIM', queue, places - found.places, -1) end
  end
  return owner, seq
end

-- Passes a free lock on, or the lock of `ending`; without a winner it is free then. Returns 1 if a live ticket may
-- follow the places that one call reads, else 0.
local function pass_on(found, ending)
  if not serve(found, ending) and ending then call('DEL', lock) end
  return found.more and '1' or '0'
end
