--#include skip
-- Leaving. Uses: queue, deadlines, tombstone.

-- Up to this length a place is searched for in the list: less than 0.3 ms. In a longer list it stays, and is passed
-- over later because its ticket is gone.
local SEARCHED_AT_MOST = 8192

-- R3: takes out one ticket and its place. Returns how many places are left; 0: the keys of the queue are gone.
local function purge(place, places)
  local ticket = string.match(place, '^[^/]*')
  if places == 0 or not read('ZSCORE', deadlines, ticket) then return places end
  local removed = 0
  -- Who leaves has often come last, so from the tail.
  if places <= SEARCHED_AT_MOST then
    removed = call('LREM', queue, -1, place)
  elseif call('LINDEX', queue, -1) == place then
    call('RPOP', queue)
    removed = 1
  end
  if removed == places then
    call('DEL', deadlines)
  else
    if places >= WORTH_A_NOTE then forget_skip(string.match(place, '^[^:]*')) end
    call('ZREM', deadlines, ticket)
  end
  return places - removed
end

-- R3: a copy of an acquire can arrive after its owner has left. Until `copies_until`, when the server starts
-- to refuse it anyway (R2), the tombstone tells acquire that this owner has left up to `seq`.
local function set_tombstone(seq, copies_until)
  if copies_until < now then return end
  local earlier = tonumber(call('GET', tombstone) or 0) or 0
  -- Neither the seq nor the lifetime of an earlier tombstone shrinks: its own copies may still arrive.
  local lifetime = string.format('%d', math.max(call('PTTL', tombstone), copies_until - now + 1000))
  call('SET', tombstone, string.format('%d', math.max(seq, earlier)), 'PX', lifetime)
end
