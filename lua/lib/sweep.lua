--#include millis
-- Making room: looks for dead places anywhere in the queue, not only at its head. Uses: queue, deadlines.
local SWEPT_AT_MOST, TAKEN_AT_MOST = 1024, 256
-- How many to look at when nothing says that some are dead.
local SWEPT_AT_LEAST = 64

-- Whether this place is dead, with what is known of its client. Patterns, not `before`: acquire includes this inside a
-- block, with which `before` would end, and advance needs it later.
local function is_dead(place, lives)
  local client = string.match(place, '^[^:]*')
  if lives[client] == nil then
    lives[client] = math.abs(tonumber(read('ZSCORE', deadlines, client) or 0)) - now >= 1
  end
  return not lives[client] or not read('ZSCORE', deadlines, (string.match(place, '^[^/]*')))
end

-- Takes dead places out of a part of the queue: of all of it if that is short, else of another part each time. The
-- last place is the caller's own and stays, with its ticket. So neither list nor sorted set is emptied: it would be deleted,
-- and could not be written again (R13).
-- Returns how many tickets of others are left, how many places, and whether another call may find more dead ones.
local function sweep(places)
  local tickets = call('ZCOUNT', deadlines, 'inf', 'inf') - 1
  local others = places - 1
  local evidence = tickets < others or call('ZCOUNT', deadlines, -now, now) > 0
  local size = evidence and SWEPT_AT_MOST or SWEPT_AT_LEAST
  local from = others > size and clock[2] % (others - size + 1) or 0
  local lives, dead, clients = {}, {}, {}
  -- Of one place alone there are no others, and LRANGE to -1 would be all of it.
  for i, place in ipairs(others > 0 and read('LRANGE', queue, from, math.min(from + size, others) - 1) or {}) do
    if #dead < TAKEN_AT_MOST and is_dead(place, lives) then
      -- By index: a search through the list for each would cost too much.
      call('LSET', queue, from + i - 1, '')
      dead[#dead + 1] = string.match(place, '^[^/]*')
      local client = string.match(place, '^[^:]*')
      if not lives[client] then clients[#clients + 1] = client end
    end
  end
  if #dead == 0 then return tickets, places, false end
  call('LREM', queue, 0, '')
  tickets = tickets - call('ZREM', deadlines, unpack(dead))
  -- A client whose places were taken has no member any more, so that it hears of it.
  call('ZREM', deadlines, '!skip', unpack(clients))
  return tickets, places - #dead, #dead == TAKEN_AT_MOST or others > size
end
