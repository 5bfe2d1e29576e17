-- Stores the token of a grant. Pasted in place. Uses: call, tokens, token, stored, now_us, settings.
-- A token is usually the time of its grant. The first grant in each 100 s sets the TTL again; the others, whose first
-- digits are the same, keep it, which is a third cheaper. While tokens run ahead of the clock, every grant sets it.
if token == now_us and stored and #stored == 16 and stored > string.sub(token, 1, 8) then
  call('SET', tokens, token, 'KEEPTTL')
else
  local lifetime = string.match(settings, '^%d+ %d+ (%d+)')
  call('SET', tokens, token, 'PX', string.format('%d', lifetime + 100000))
end
