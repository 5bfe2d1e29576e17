--#include base
-- What the hash of a shared name has: a record for each holder, under its owner; and in `!used` the sum of their weights, their
-- number, a lower bound of the earliest end, and the last token.

-- end (server ms), holds, attempt, token, terms, weight. The end is first: to compare records as texts is to compare their ends.
local RECORD = '^(%d+) (%d+) (%d+) (%d+) ((%d+),%d+,%d+/.*)$'
local SUMMARY = '^(%d+) (%d+) (%d+) (%d+)$'
