--#include base
-- The hash of a shared name: a record for each holder, under its owner; and in `!used` the sum of the weights, the
-- number of holders, a lower bound of the earliest end, and the last token.

-- end (server ms), holds, attempt, token, terms, weight. The end comes first, so records compare as their ends do.
local RECORD = '^(%d+) (%d+) (%d+) (%d+) ((%d+),%d+,%d+/.*)$'
local SUMMARY = '^(%d+) (%d+) (%d+) (%d+)$'
