-- Refuses a place that is not of a shared name. Pasted in place. Uses: find, place, PLACE, refuse_place.
if not find(place, PLACE) then refuse_place(place) end
