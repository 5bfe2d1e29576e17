-- A place in the queue is `<client>:<n>:<seq>/<label>`: a ticket, and what its client calls itself.
local function ticket_of(place)
  return string.match(place, '^[^/]*')
end
