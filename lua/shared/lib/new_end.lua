-- Writes a record with a new end. Pasted in place. Uses: call, lock, now (whole ms), longer (the end), set (field and
-- record, and perhaps `!used` and its text), summary (the old one), tokens, token, token_ttl.
local used, holders, soon, rest = string.match(summary or '', '^(%d+ (%d+)) (%d+) (%d+)$')
-- The summary keeps a lower bound of all ends.
if soon and longer < tonumber(soon) then
  set[3], set[4] = '!used', used .. ' ' .. string.format('%d', longer) .. ' ' .. rest
end
call('HSET', lock, unpack(set))
-- The key of a single holder ends with it.
if holders == '1' or call('PTTL', lock) < longer - now then call('PEXPIRE', lock, string.format('%d', longer - now)) end
-- P2: see lua/renew.lua.
if tokens and call('PEXPIRE', tokens, token_ttl) == 0 then call('SET', tokens, token, 'PX', token_ttl) end
