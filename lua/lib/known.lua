-- A token that is none would reach the client as a reply that nobody knows.
local function known(token, key)
  if token and not tonumber(token) then
    error({ err = 'ERR fairlock: the key \'' .. key .. '\' does not hold a lock of fairlock; delete it' })
  end
  return token
end
