-- Shared by every script, after it has named its KEYS and ARGV.
local call = redis.call

-- A number within a text, or given to a command: `..` and `tostring` would round a time to 14 digits.
local function exact(number)
  return string.format('%.0f', number)
end

-- Reads through pcall, so that a foreign value is reported by the name of its key. Scripts read
-- every key they may write before the first write: Redis does not roll back.
local function read(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, '^WRONGTYPE') then
      error({ err = 'WRONGTYPE fairlock: the key \'' .. key .. '\' holds something that is not part of a fairlock lock' })
    end
    error(reply)
  end
  return reply
end
