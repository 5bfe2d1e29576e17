#!lua flags=allow-oom
-- boot: freezes a server that may have forgotten a grant, for a client with strict_restart: one that was started or
-- promoted since the record was written, or whose record is gone. Each connection runs it before any other request.
--
-- KEYS[1] boot       string   frozen_until (server ms), began (server ms), life
-- ARGV[1] request    growing number, returned as it is
-- ARGV[2] life       of the server: another one after each start and each promotion
-- ARGV[3] freeze     ms: the longest lease of any client, and some more
--
-- Returns one text: status, request, server time (s and us), and
--   booted, frozen_until (server ms; it may have passed)
--
-- Keeps: frozen_until never gets smaller. A second run changes nothing. The record has no time to live: without it all
-- would be frozen once more.
local boot = unpack(KEYS)
local request, life, freeze = unpack(ARGV)

--#include clock

local frozen_until, began, known = string.match(read('GET', boot) or '', '^(%d+) (%d+) (.*)$')
frozen_until = tonumber(frozen_until or 0)
if known ~= life then began = clock[1] * 1000 + math.ceil(clock[2] / 1000) end
-- A client that knows of a longer lease than the one that froze the server may come later: the instant is moved, for all.
local needed = began + freeze
if known ~= life or needed > frozen_until then
  -- An earlier freeze may be longer, and is not over.
  frozen_until = math.max(frozen_until, needed)
  call('SET', boot, string.format('%d %d %s', frozen_until, began, life))
end
return 'booted ' .. echo .. ' ' .. string.format('%d', frozen_until)
