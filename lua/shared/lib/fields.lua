--#include base
-- What the hash of a shared name has: the kind in `!format`; a record for each holder in `#<owner>`; and in `!used` the sum of their
-- weights, their number, a lower bound of the earliest end, the limit that the last one's client has, and the last token. The `#`
-- keeps the scripts of a lock, which know owners by their names alone, from taking a record for a hold of theirs.

-- end (server ms), holds, attempt, token, terms, weight. The end is first: to compare records as texts is to compare their ends.
local RECORD = '^(%d+) (%d+) (%d+) (%d+) ((%d+),%d+,%d+/.*)$'
local SUMMARY = '^(%d+) (%d+) (%d+) (%d+) (%d+)$'
