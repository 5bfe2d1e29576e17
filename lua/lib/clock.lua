-- The server's clock is the only one that decides who is late (design section 5).
local clock = redis.call('TIME')
clock = { tonumber(clock[1]), tonumber(clock[2]) }
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
