-- Where to begin in the queue: behind the places that were passed over before. Pasted in place. Uses: frozen, places, read, deadlines,
-- found, heard, now, waiter_ttl.
local noted = not frozen and places > 0 and tonumber(read('ZSCORE', deadlines, '!skip') or '0') or 0
found.is_noted = noted > 0
if frozen then return found end
if heard then
  found.lives[heard] = now + waiter_ttl
  -- Its places may be among the counted ones.
  local score = noted > 0 and read('ZSCORE', deadlines, heard)
  if score and tonumber(score) <= now then noted = 0 end
end
-- A client of theirs that can be reached again polls, and ends the note. More than there are: the list was made shorter by hand.
local skip = noted <= places and noted or 0
local from, size = 0, 2 -- the first in line is nearly always served
