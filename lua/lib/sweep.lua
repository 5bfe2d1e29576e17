--#include millis
-- Making room: looks for dead places anywhere in the queue, not only at its head. Uses: queue, deadlines.
local SWEPT_AT_MOST, TAKEN_AT_MOST = 1024, 256
-- How many to look at when nothing says that some are dead.
local SWEPT_AT_LEAST = 64

-- Whether this place is dead, with what is known of its client.
local function is_dead(place, lives)
  local client = string.match(place, '^[^:]*')
  if lives[client] == nil then
    lives[client] = math.abs(tonumber(read('ZSCORE', deadlines, client) or 0)) - now >= 1
  end
  return not lives[client] or not read('ZSCORE', deadlines, (string.match(place, '^[^/]*')))
end

-- Takes dead places out of a part of the queue: of all of it if that is short, else of another part each time.
-- Returns how many tickets are left, how many places, and whether another call may find more dead ones.
local function sweep(places)
  local tickets = call('ZCOUNT', deadlines, 'inf', 'inf')
  local evidence = tickets < places or call('ZCOUNT', deadlines, -now, now) > 0
  local size = evidence and SWEPT_AT_MOST or SWEPT_AT_LEAST
  local from = places > size and clock[2] % (places - size) or 0
  -- One place stays: a list that is emptied here is deleted, and could not be written again (R13). Its ticket goes.
  local lives, dead, taken = {}, {}, 0
  for i, place in ipairs(read('LRANGE', queue, from, from + size - 1)) do
    if #dead < TAKEN_AT_MOST and is_dead(place, lives) then
      dead[#dead + 1] = string.match(place, '^[^/]*')
      if taken < places - 1 then
        -- By index: a search through the list for each would cost too much.
        call('LSET', queue, from + i - 1, '')
        taken = taken + 1
      end
    end
  end
  if #dead == 0 then return tickets, places, false end
  if taken > 0 then call('LREM', queue, 0, '') end
  tickets = tickets - call('ZREM', deadlines, unpack(dead))
  call('ZREM', deadlines, '!skip')
  return tickets, places - taken, #dead == TAKEN_AT_MOST or places > size
end
