-- Refuses a place that does not belong to a lock. Pasted in place. Uses: find, place, refuse_place.
if not find(place, '^[^:/]+:%d+:%d+/%d+/') then refuse_place(place) end
