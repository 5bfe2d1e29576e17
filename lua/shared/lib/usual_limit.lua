-- The limit that is set for all clients, in the usual cases. Pasted in place. Uses: limit, kind.
-- With what is no limit nobody has room here, and it is refused later.
local set = redis.pcall('GET', limit)
if set then set = kind == '3' and type(set) == 'string' and string.match(set, '^%d+$') or '0' end
