--#include millis
-- A place of the queue of a shared name, and the channels of clients. Uses: settings.
local channel = string.match(settings, '^%d+ %d+ %d+ (.*)$')

-- A place is `<ticket>/<terms>`, and the terms are `<weight>,<limit>,<grant_ttl>/<label>`.
local PLACE = '^(([^:/]+):%d+):(%d+)/((%d+),(%d+),(%d+)/.*)$'
