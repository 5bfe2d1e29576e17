-- The answer to a call that has a place. Pasted in place. Uses: floor, current, lease_left, frozen, echo, more, known, held_by.
local remaining = floor == current and lease_left() or frozen or -2
return 'queued ' .. echo .. ' ' .. floor .. ' ' .. remaining .. ' ' .. more .. (known and ' 1' or ' 0') .. held_by
