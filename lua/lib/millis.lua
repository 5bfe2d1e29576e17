--#include clock
-- The time as a number, to compare it with deadlines.
local now = clock[1] * 1000 + clock[2] / 1000 -- in ms, with a fraction
