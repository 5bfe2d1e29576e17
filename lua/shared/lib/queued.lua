-- The answer to a call that has a place. Pasted in place. Uses: floor, room, room_in, frozen, echo, more, known.
return 'queued ' .. echo .. ' ' .. floor .. ' ' .. (frozen or room_in(room)) .. ' ' .. more .. (known and ' 1' or ' 0')
