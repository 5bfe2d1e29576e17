--#include base
-- What the keys of a name look like: format 2. Uses: lock, queue.
-- A script that meets what it cannot read changes nothing, so that two versions of the library never damage each
-- other's locks.

-- For a hash without a grant. A later format has to leave out `!grant` and to name itself in `!format`.
local function refuse_hash()
  local format = call('HGET', lock, '!format')
  if format then
    error({ err = 'ERR fairlock: the lock \'' .. lock .. '\' has format ' .. format .. ', and this client knows format 2: use a newer version of fairlock' })
  end
  error({ err = 'ERR fairlock: the key \'' .. lock .. '\' does not hold a lock of fairlock; delete it' })
end

-- For a place that cannot be read. A later format has to begin its places with `!` and its number.
local function refuse_place(place)
  local format = string.match(place, '^!(%d+)/')
  if format then
    error({ err = 'ERR fairlock: the queue \'' .. queue .. '\' has a place of format ' .. format .. ', and this client knows format 2: use a newer version of fairlock' })
  end
  error({ err = 'ERR fairlock: the key \'' .. queue .. '\' does not hold a queue of fairlock; delete it' })
end
