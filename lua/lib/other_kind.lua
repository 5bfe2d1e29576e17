-- Ends a script for a lock that meets another kind of name. Pasted in place. Uses: format, lock.
if format == '3' or format == '4' then
  error({ err = 'OTHERKIND fairlock: ' .. (format == '3' and 'semaphore' or 'rw_lock') .. ', asked as lock: the key \'' .. lock .. '\' is in use' })
end
