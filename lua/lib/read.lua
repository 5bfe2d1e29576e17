--#include base
-- Reads through pcall, so that an error about a wrong type names the key. A script reads every key that it may write
-- before its first write, because Redis does not roll back.
local function read(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    --#paste refuse
  end
  return reply
end
