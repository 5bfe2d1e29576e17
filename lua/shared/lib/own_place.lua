-- The place of this call. Pasted in place. Uses: MARK, ticket, terms.
local place = MARK .. ticket .. '/' .. terms
