-- How far from an end of the list LREM may search: less than 0.5 ms. A place farther in stays, and is passed over.
local SEARCHED_AT_MOST = 8192

-- The text before a mark: in a place the client before ':', and the ticket before '/'. The kind before a place is left
-- out: it has one digit.
local function before(text, mark)
  local from = string.sub(text, 1, 1) == '!' and 4 or 1
  return string.sub(text, from, (string.find(text, mark, from, true) or 0) - 1)
end
