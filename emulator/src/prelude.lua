-- The environment that Redis gives to a script: redis.call, redis.pcall, and no new globals. Returns a function
-- that runs a script, and returns its result or {err = …} for an error that it raised.
local run_command = ...

redis = { pcall = run_command }

function redis.call(...)
  local reply = run_command(...)
  if type(reply) == 'table' and reply.err then error(reply) end
  return reply
end

dofile, loadfile, print = nil, nil, nil
KEYS, ARGV = {}, {}

setmetatable(_G, {
  __index = function(_, name)
    error('Script attempted to access nonexistent global variable \'' .. tostring(name) .. '\'', 2)
  end,
  __newindex = function(_, name)
    error('Script attempted to create global variable \'' .. tostring(name) .. '\'', 2)
  end,
})

return function(script)
  local ok, reply = pcall(script)
  if ok or (type(reply) == 'table' and reply.err) then return reply end
  return { err = 'ERR ' .. tostring(reply) }
end
