-- Refuses a place that does not belong to a shared name. Pasted in place. Uses: find, place, PLACE, refuse_place.
if not find(place, PLACE) then refuse_place(place) end
