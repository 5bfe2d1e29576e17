-- Leaving takes a ticket out of the set of the living only; this takes the dead out of the list,
-- a bounded part of it at a time, whenever they outnumber the living. Uses: advance.lua and look.lua.
local function compact()
  if call('LLEN', queue) <= 2 * call('ZCARD', deadlines) + 128 then return end
  local block = call('LRANGE', queue, 0, 255)
  local tickets, ends = look(block)
  local kept, removed = {}, {}
  for i, place in ipairs(block) do
    if ends[i] then
      kept[#kept + 1] = place
    else
      removed[#removed + 1] = tickets[i]
    end
  end
  if #removed > 0 then drop_head(#block, kept, removed) end
end
