-- The server's clock is the only one that decides who is late (design section 5).
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
