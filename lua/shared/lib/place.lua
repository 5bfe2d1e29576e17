--#include millis
-- A place of the queue of a shared name, and the channels of clients. Uses: settings, kind.
local channel = string.match(settings, '^%d+ %d+ %d+ (.*)$')

-- A place is the kind as `!<format>/` and then `<ticket>/<terms>`, and the terms are `<weight>,<limit>,<grant_ttl>/<label>`,
-- as in lib/place.lua.
local MARK = '!' .. kind .. '/'
local PLACE = '^' .. MARK .. '(([^:/]+):%d+):(%d+)/((%d+),(%d+),(%d+)/.*)$'
