-- The limit for all clients, in the usual cases. Pasted in place. Uses: limit, set (which gets it).
-- With a malformed limit no caller has room here, and the code below refuses it.
local given = redis.pcall('GET', limit)
set = given and (type(given) == 'string' and string.match(given, '^%d+$') or '0')
