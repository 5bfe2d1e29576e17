-- Where to begin in the queue: after the places that earlier calls passed over. Pasted in place. Uses: frozen, places,
-- read, deadlines, found, heard, now, waiter_ttl.
local noted = not frozen and places > 0 and tonumber(read('ZSCORE', deadlines, '!skip') or '0') or 0
found.is_noted = noted > 0
if frozen then return found end
if heard then
  found.lives[heard] = now + waiter_ttl
  -- The count may include its places.
  local score = noted > 0 and read('ZSCORE', deadlines, heard)
  if score and tonumber(score) <= now then noted = 0 end
end
-- If a client among them is reachable again, it polls, and that ends the note. If the count exceeds the list, someone
-- shortened the list by hand.
local skip = noted <= places and noted or 0
local from, size = 0, 2 -- the first in line is nearly always served
