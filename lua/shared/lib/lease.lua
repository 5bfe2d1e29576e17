--#include millis
-- When a lease of a shared name may end.

-- In ms; negative without a holder.
local function room_in(room)
  return room.holders > 0 and string.format('%d', math.max(0, math.ceil(room.soon - now))) or '-2'
end
