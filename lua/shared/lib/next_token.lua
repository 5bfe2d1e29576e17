--#include room
-- The token of the next grant. Uses: tokens.
-- P2: the hash remembers the last one as well.
local current = room.token
--#paste token
