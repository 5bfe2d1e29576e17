-- Gives the lock to the place of `owner` and notifies its client. Pasted in place. Uses: call, lock, tokens, settings,
-- clock, now, now_us, stored, channel, client, client_until (server ms until which it lives), owner, seq, token, terms,
-- grant_ttl, ending.
--#paste grant_lease
-- The hold first, then the message, which the client trusts (R7): if a missing right ended the script after the
-- message, the lock would go to another waiter as well (P1).
--#paste hold
-- R7: the message states how long the grant lasts, since the deadline may have shortened it.
local message = 'grant ' .. token .. ' ' .. lease .. ' ' .. owner .. ':' .. seq .. ' ' .. lock
-- pcall: without the right to publish, the waiter finds its grant by a poll, and the lock still moves on.
redis.pcall('PUBLISH', channel .. client, message)
