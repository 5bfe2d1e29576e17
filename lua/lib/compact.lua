-- Leaving takes a ticket out of the set of the living only; this takes the dead out of the list,
-- a bounded part of it at a time, whenever they outnumber the living. Uses: advance.lua.
local function compact()
  if redis.call('LLEN', queue) <= 2 * redis.call('ZCARD', deadlines) + 128 then return end
  local block = redis.call('LRANGE', queue, 0, 255)
  local ends = redis.call('ZMSCORE', deadlines, unpack(block))
  local kept, removed = {}, {}
  for i, ticket in ipairs(block) do
    local side = ends[i] and kept or removed
    side[#side + 1] = ticket
  end
  if #removed > 0 then drop_head(#block, kept, removed) end
end
