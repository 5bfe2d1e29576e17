--#include millis
-- A place of the queue, and the channels of clients. Uses: settings.
local channel = string.match(settings, '^%d+ %d+ %d+ (.*)$')

-- A place is `<ticket>/<terms>`, a ticket is `<client>:<n>:<seq>`, and the terms are `<grant_ttl>/<label>`. This
-- grant_ttl is how long a grant to it lasts: the client's grant_ttl and poll_interval together (R7).
local PLACE = '^(([^:/]+):%d+):(%d+)/((%d+)/.*)$'
