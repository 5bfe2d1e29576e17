-- Ends a script that meets another kind of name. Pasted in place. Uses: format, kind, lock.
local words = { ['2'] = 'lock', ['3'] = 'semaphore', ['4'] = 'rw_lock' }
if words[format] and format ~= kind then
  error({ err = 'OTHERKIND fairlock: ' .. words[format] .. ', asked as ' .. words[kind] .. ': the key \'' .. lock .. '\' is in use' })
end
