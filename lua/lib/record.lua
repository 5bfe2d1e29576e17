-- Reads the record that boot.lua wrote. Pasted in place. Uses: boot.
local record = redis.pcall('GET', boot)
if record and record.err then
  local reply, key = record, boot
  --#paste refuse
end
local frozen_until, began, epoch_before, life_before = string.match(record or '', '^(%d+) (%d+) (%d+) (.*)$')
if record and not life_before then
  error({ err = 'ERR fairlock: the key \'' .. boot .. '\' does not hold a record of fairlock; delete it' })
end
