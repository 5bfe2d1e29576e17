-- Ends a script that could not read a key. Pasted in place, for code before `read`. Uses: reply (the error), key.
if string.find(reply.err, '^WRONGTYPE') then
  error({ err = 'WRONGTYPE fairlock: the key \'' .. key .. '\' holds something that is not part of a fairlock lock' })
end
error(reply)
