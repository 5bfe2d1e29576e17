-- Uses: deadlines and place.lua.

-- The tickets of a block of places, and when each is dead: false where it has left.
local function look(block)
  local tickets = {}
  for i = 1, #block do tickets[i] = ticket_of(block[i]) end
  return tickets, read('ZMSCORE', deadlines, unpack(tickets))
end
