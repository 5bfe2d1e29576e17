-- Refuses a place that is not of this kind of name. Pasted in place. Uses: find, place, PLACE, refuse_place.
if not find(place, PLACE) then refuse_place(place) end
