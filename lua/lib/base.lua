-- Included by every script, after it has named its KEYS and ARGV. Uses: lock.
local call = redis.call

-- The format of a number in a text or a command: `..` and `tostring` round to 14 digits, tokens have 16.
local WHOLE = '%.0f'

-- Reads through pcall, so that a value of the wrong type is reported with the name of its key. A script reads
-- every key that it may write before its first write, because Redis does not roll back.
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

-- The only reader of the lock's hash. Returns the holds of `owner` (false if it has none), the last attempt
-- served and the token. Without `owner` it finds the holder itself, and returns its name and label as well.
local function read_lock(owner)
  if owner then
    local fields = read('HMGET', lock, owner, '!attempt', '!token')
    return fields[1], fields[2], fields[3]
  end
  local fields, reserved, holds = read('HGETALL', lock), {}, false
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 1) == '!' then
      reserved[fields[i]] = fields[i + 1]
    else
      owner, holds = fields[i], fields[i + 1]
    end
  end
  return holds, reserved['!attempt'], reserved['!token'], owner, reserved['!label']
end
