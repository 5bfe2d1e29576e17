-- Takes places out of the queue by their indexes. Pasted in place. Uses: call, queue, taken (the indexes), mark (one of
-- these places), is_behind (they are nearer to the tail).
-- LSET by index: an LREM for each would search the list. P6: one of the places marks them all. If Redis refuses the
-- LREM, the list stays readable: the tickets of these places have gone.
for _, index in ipairs(taken) do call('LSET', queue, index, mark) end
-- From the nearer end; the rest of the list does not move.
if #taken > 0 then call('LREM', queue, is_behind and -#taken or #taken, mark) end
