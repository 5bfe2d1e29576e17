--#include millis
--#include read
--#include format
--#include fields
-- The weight taken of a shared name, and its holders. Uses: lock, limit, owner (whose record to read).
local HOLDERS_AT_MOST, ENDED_AT_MOST = 1024, 256

local fields, set_limit = read('HMGET', lock, owner, '!used'), read('GET', limit)
local used, holders, soon, last_token = string.match(fields[2] or '', SUMMARY)
if not used then refuse_foreign_hash() end
if fields[1] and not string.find(fields[1], RECORD) then refuse_hash() end
if set_limit and not string.find(set_limit, '^%d+$') then
  error({ err = 'ERR fairlock: the key \'' .. limit .. '\' does not hold a limit of fairlock; delete it' })
end

-- `record`: of `owner`; `set_limit`: the limit for all clients, if one is set. `gone`: fields that this call takes out;
-- `set`: fields and values that it sets; `weights`: of the fields that it changes, 0 for a hold that ends. The `new`
-- holders, with the weight `of_new`, are not in the hash yet.
local room = {
  exists = used, used = tonumber(used or '0'), holders = tonumber(holders or '0'), soon = tonumber(soon) or 1 / 0,
  token = last_token, record = fields[1] or '', set_limit = tonumber(set_limit), gone = {}, set = {}, weights = {}, of_new = 0, new = 0,
}

-- A holder with this weight comes in.
local function count(room, weight)
  room.of_new, room.new = room.of_new + weight, room.new + 1
  room.used, room.holders = room.used + weight, room.holders + 1
end

-- A holder with this weight goes.
local function uncount(room, field, weight)
  room.gone[#room.gone + 1], room.weights[field] = field, 0
  room.used, room.holders = room.used - weight, room.holders - 1
end

-- A holder keeps this weight, which is `less` below its old one.
local function change(room, field, weight, less)
  room.weights[field], room.used = weight, room.used - less
end

-- Takes out the holders whose lease has ended, and counts the others again, so that a count which a refused script left
-- too high does not last.
local function take_out_ended(room)
  local fields, used, holders, soon = read('HGETALL', lock), room.of_new, room.new, nil
  local gone, weights, ended = room.gone, room.weights, #room.gone
  -- A record begins with its end, of 13 digits until the year 2286: reading it as a number costs as much as the rest of
  -- a step.
  local match, next_ms = string.match, string.format('%d', math.floor(now) + 1)
  for i = 1, #fields, 2 do
    local field, record = fields[i], fields[i + 1]
    local changed = weights[field]
    if record < next_ms and not changed and ended < ENDED_AT_MOST and field ~= '!used' then
      ended = ended + 1
      gone[ended], weights[field] = field, 0
    elseif changed ~= 0 then
      local ends, weight = match(record, '^(%d+) %d+ %d+ %d+ (%d+),')
      if ends then
        used, holders = used + (changed or weight), holders + 1
        if not soon or ends < soon then soon = ends end
      elseif string.sub(field, 1, 1) ~= '!' then
        refuse_hash()
      end
    end
  end
  room.used, room.holders, room.soon, room.is_new = used, holders, tonumber(soon) or 1 / 0, true
end

-- Whether a caller with this weight may come in, under the limit for all clients or else its client's. If not, whether
-- another call may find room, since more holders have ended than one call takes out.
local function has_room(room, weight, its_limit)
  local most = (room.set_limit or tonumber(its_limit)) - weight
  local is_full = room.used > most or room.holders >= HOLDERS_AT_MOST
  if is_full and now >= room.soon and room.holders > 0 and not room.is_new then
    take_out_ended(room)
    is_full = room.used > most or room.holders >= HOLDERS_AT_MOST
  end
  return not is_full, is_full and room.is_new and room.soon <= now
end
