-- Shared by every script, after it has named its KEYS.

-- A number within a text, or given to a command: `..` and `tostring` would round a time to 14 digits.
local function exact(number)
  return string.format('%.0f', number)
end

-- A token that is none would reach the client as a reply that nobody knows.
local function known(token, key)
  if token and not tonumber(token) then
    error({ err = 'ERR fairlock: the key \'' .. key .. '\' does not hold a lock of fairlock; delete it' })
  end
  return token
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
