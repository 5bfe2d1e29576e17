--#include base
-- The server's clock alone decides what is late or dead; the clocks of clients may differ (R2).
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
