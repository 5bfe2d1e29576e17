-- The only place where a lock goes from free to held, or from one owner to the next. Pasted in place. Uses: call, lock,
-- tokens, settings, clock, now_us, stored, owner, seq, token, lease, terms (of an acquire: grant_ttl/label), ending
-- (the owner whose hold ends here).
-- The token first: a script that Redis refuses here has changed nothing, and one refused below skips a token, but never
-- grants one twice (P2).
--#paste remember
-- The last owner's field goes first, so that a hash never has two owners, whatever Redis refuses. `!grant` stays: in a
-- slot that moves to another node, no script can write a deleted key again (R13).
if ending and ending ~= owner then call('HDEL', lock, ending) end
call('HSET', lock, owner, '1', '!grant', seq .. ' ' .. token .. ' ' .. clock[1] .. ' ' .. clock[2] .. ' ' .. terms)
call('PEXPIRE', lock, lease)
