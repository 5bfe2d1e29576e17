--#include base
-- The server's clock alone decides what is late or dead; the clocks of clients may differ (R2). Until the year 2286 it
-- has 16 digits, so that texts compare as the numbers do. Making a number of such a text costs as much as a small call.
local clock = call('TIME')
local now_us = clock[1] .. string.sub('00000' .. clock[2], -6)
local echo = request .. ' ' .. clock[1] .. ' ' .. clock[2] -- what follows the status in each reply
