--#include room
--#include next_token
--#include examine
-- Finds the waiters for which there is room (R6), and lets them in; see also lua/lib/advance.lua. Uses: lock, queue,
-- deadlines, tokens, settings, stored, token, now_us, caller, frozen.
local SERVED_AT_MOST = 32

local function let_in(found, room, winner)
  found.winners[#found.winners + 1] = winner
  found.has_won[winner.owner] = winner.seq
  count(room, winner.weight)
end

-- Whether the owner has a hold from this attempt, because Redis refused the script that let it in, or from a later one,
-- because a copy of its acquire came late and queued after it (P1: the record must stay). An owner that comes in again
-- has lost its earlier hold, which no longer counts.
local function is_over(room, owner, seq)
  local record = room.exists and room.weights[owner] ~= 0 and read('HGET', lock, owner)
  local ends, _, attempt, _, _, weight = string.match(record or '', RECORD)
  if not attempt then return false end
  if tonumber(attempt) >= tonumber(seq) and tonumber(ends) > now then return true end
  room.used, room.holders = room.used - (room.weights[owner] or tonumber(weight)), room.holders - 1
  room.weights[owner] = 0
  return false
end

-- R6: finds the live tickets of reachable clients, from the front, up to the first without room. Writes nothing, and
-- refuses malformed data. `heard`: a client that the caller is about to `hear`. `more`: another call may let in more.
-- During a freeze all keep their places.
local function look(places, heard, room)
  local found = {
    places = places, passed = 0, cleared = 0, dead = {}, lives = {}, marks = {}, work = 0, more = false, winners = {},
    has_won = {}, taken = {}, stops = frozen,
  }
  --#paste skipped
  local cleared, dead = 0, 0 -- up to the last winner
  while not found.stops and from < places and found.work < WORK_AT_MOST do
    local block, clients, waits, has_living = examine(from, size, found)
    if #block == 0 then break end
    for i = 1, (has_living or found.cleared == from) and #block or 0 do
      local place = block[i]
      local until_ms, at = found.lives[clients[i]], from + i - 1
      local goes = until_ms > 0 and not waits[i]
      if waits[i] and at >= skip then
        local owner, client, seq, terms, weight, its_limit, grant_ttl = string.match(place, PLACE)
        if not owner then refuse_place(place) end
        weight = tonumber(weight)
        -- A winner may have a second place, because it lost its ticket and queued again. That place must not hide the
        -- waiters after it.
        if found.has_won[owner] ~= seq then
          local is_room, more = has_room(room, weight, its_limit)
          -- A second ticket of one owner would replace the hold of the first.
          found.more = is_room and (#found.winners == SERVED_AT_MOST or found.has_won[owner]) or more
          if found.more or not is_room then
            found.stops, found.passed = true, at
            break
          end
          -- P6: a grant ends with its client's deadline.
          local lease = math.floor(math.min(tonumber(grant_ttl), until_ms - now))
          if not is_over(room, owner, seq) then
            let_in(found, room, { owner = owner, client = client, seq = seq, terms = terms, weight = weight, lease = lease })
          end
        end
        found.dead[#found.dead + 1] = before(place, '/')
        goes = true
        if found.cleared < at and math.min(at, places - at) <= SEARCHED_AT_MOST then
          found.taken[#found.taken + 1], found.mark = at, place
        end
      elseif until_ms == 0 and found.cleared == at and #found.dead < BLOCK then
        goes = true
        found.dead[#found.dead + 1] = before(place, '/')
      end
      if goes and found.cleared == at then found.cleared = at + 1 end
      if goes and waits[i] then cleared, dead = found.cleared, #found.dead end
    end
    from, size = from + #block, BLOCK
    if from < skip and (from > 2 or found.cleared < from) then from, size = skip, 2 end
    if not found.stops then found.passed = math.min(from, places) end
  end
  if not found.stops then found.more = found.passed < places end
  -- P3: the dead keep their places until a waiter after them comes in, since they may be back by then.
  if found.stops or room.holders > 0 then
    found.cleared = cleared
    for i = #found.dead, dead + 1, -1 do found.dead[i] = nil end
  end
  return found
end

-- Lets in the waiters that `look` found, and notifies their clients; takes out their places, and the dead ones at the
-- head. Without a holder the hash ends. Sets `found.places` to the number left. `own`: the ticket of this call, which
-- reads the reply. Returns 1 if another call may let in more, else 0.
local function serve(found, room, own)
  local winners, soon, longest = found.winners, room.soon, 0
  -- P6: see lua/lib/advance.lua.
  if #winners > 0 and found.places > 0 then call('ZREM', deadlines, '') end
  if found.is_new then forgive(found.forgiven, found.spent) end
  for i, winner in ipairs(winners) do
    local ends = math.floor(now) + winner.lease
    winner.token = string.format('%d', token + i - 1)
    room.set[#room.set + 1] = winner.owner
    room.set[#room.set + 1] = string.format('%d', ends) .. ' 1 ' .. winner.seq .. ' ' .. winner.token .. ' ' .. winner.terms
    soon, longest = math.min(soon, ends), math.max(longest, winner.lease)
  end
  local last_token = room.token
  -- The token first: see lib/hold.lua.
  if #winners > 0 then
    local token = winners[#winners].token
    --#paste remember
    last_token = token
  end
  if room.holders > 0 and (#room.set > 0 or #room.gone > 0 or room.is_new) then
    -- Ended holds go first: after a refusal the count is too high, and never too low (P1).
    if #room.gone > 0 then call('HDEL', lock, unpack(room.gone)) end
    local summary = string.format('%d %d %d ', room.used, room.holders, soon) .. last_token
    call('HSET', lock, '!used', summary, unpack(room.set))
    if longest > 0 and (room.holders == #winners or call('PTTL', lock) < longest) then call('PEXPIRE', lock, string.format('%d', longest)) end
  elseif room.holders <= 0 and room.exists then
    call('DEL', lock)
  end
  room.soon = soon
  for _, winner in ipairs(winners) do
    local ticket = winner.owner .. ':' .. winner.seq
    -- R7: see lib/hand_over.lua.
    local message = 'grant ' .. winner.token .. ' ' .. winner.lease .. ' ' .. ticket .. ' ' .. lock
    if ticket ~= own then redis.pcall('PUBLISH', channel .. winner.client, message) end
  end

  local places, cleared, taken, dead = found.places, found.cleared, found.taken, found.dead
  found.places = places - cleared - #taken
  if places > 0 and found.places == 0 then
    call('UNLINK', queue, deadlines)
  elseif places > 0 then
    local passed = found.passed - cleared - #taken
    if passed >= WORTH_A_NOTE then
      call('ZADD', deadlines, passed, '!skip', unpack(found.marks))
    elseif found.is_noted then
      dead[#dead + 1] = '!skip'
    end
    if #dead > 0 then call('ZREM', deadlines, unpack(dead)) end
    local mark, is_behind = found.mark, 2 * found.passed > places
    --#paste take_out
    if cleared > 0 then call('LTRIM', queue, cleared, -1) end
  end
  return found.more and '1' or '0'
end
