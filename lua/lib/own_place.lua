-- The place of this call. Pasted in place. Uses: ticket, terms.
local place = ticket .. '/' .. terms
