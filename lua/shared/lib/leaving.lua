--#include purge
--#include place
--#include format
-- Leaving the queue of a shared name. Uses: queue, deadlines, tombstone.
read('GET', tombstone)

-- R3: takes a place out, and writes a tombstone for late copies of its request. Returns how many places remain. Refuses
-- malformed data first.
local function leave(seq, copies_until, place, places)
  local first = places > 0 and read('LINDEX', queue, '0')
  if first and not string.find(first, PLACE) then refuse_place(first) end
  set_tombstone(seq, copies_until)
  return purge(place, places)
end
