--#include base
-- The format of the keys of a shared name: 3 for a semaphore, 4 for a read-write lock. Uses: lock, queue, kind.
-- A script that meets what it cannot read changes nothing, so that kinds and versions never damage each other's names.

local function refuse(format, key)
  if format then
    --#paste other_kind
    if format ~= kind then
      error({ err = 'ERR fairlock: the key \'' .. key .. '\' has format ' .. format .. ', and this client knows formats 2 to 4: use a newer version of fairlock' })
    end
  end
  error({ err = 'ERR fairlock: the key \'' .. key .. '\' does not hold what fairlock writes; delete it' })
end

-- For a hash that is not of this kind, or that has fields of others.
local function refuse_hash()
  local fields = call('HMGET', lock, '!grant', '!format')
  refuse(fields[1] and '2' or fields[2], lock)
end

local function refuse_place(place)
  refuse(string.match(place, '^!(%d+)/') or string.find(place, '^[^:/]+:%d+:%d+/%d+/') and '2', queue)
end
