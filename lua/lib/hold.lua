-- The only place where a lock goes from free to held, or from one owner to the next. Pasted in place. Uses: call, lock, tokens,
-- settings, clock, now_us, stored, owner, seq, token, lease, terms (of an acquire: grant_ttl/label), ending (the owner whose
-- hold ends here).
-- First the token: refused here, nothing has happened, and refused below a token is skipped, not given twice (P2).
-- A token is the time of its grant, as a rule. The first grant in each 100 s sets the time to live anew, and the
-- others keep it, which is cheaper by a third: where the last one, which is smaller, has the same first digits. While tokens run
-- ahead of the clock these stand still.
if token == now_us and stored and #stored == 16 and stored > string.sub(token, 1, 8) then
  call('SET', tokens, token, 'KEEPTTL')
else
  local lifetime = string.match(settings, '^%d+ %d+ (%d+)')
  call('SET', tokens, token, 'PX', string.format('%d', lifetime + 100000))
end
-- The field of the last owner goes first, so that a hash never has two, whatever is refused. `!grant` stays: in a slot that
-- moves to another node a deleted key cannot be written again (R13).
if ending and ending ~= owner then call('HDEL', lock, ending) end
call('HSET', lock, owner, '1', '!grant', seq .. ' ' .. token .. ' ' .. clock[1] .. ' ' .. clock[2] .. ' ' .. terms)
call('PEXPIRE', lock, lease)
