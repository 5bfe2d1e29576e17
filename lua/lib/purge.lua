--#include advance
-- Taking tickets out of the middle of the queue. Uses: queue, deadlines.

-- Removes dead entries from the head of the list when they outnumber the living; a bounded number in a call.
local function compact()
  if call('LLEN', queue) <= 2 * call('ZCARD', deadlines) + 128 then return end
  local block = call('LRANGE', queue, 0, 255)
  local tickets, ends = look(block)
  local kept, removed = {}, {}
  for i, entry in ipairs(block) do
    if ends[i] then
      kept[#kept + 1] = entry
    else
      removed[#removed + 1] = tickets[i]
    end
  end
  if #removed > 0 then drop_head(#block, kept, removed) end
end

-- R3: takes out one ticket. The sorted set says who is alive, so ZREM ends a ticket at any length of the
-- queue. The list is searched only while it is short; in a long one the entry stays until advance or compact
-- gets to it.
local function purge(entry)
  if call('ZREM', deadlines, ticket_of(entry)) == 0 then return end
  if call('ZCARD', deadlines) == 0 then
    call('DEL', queue)
  elseif call('LLEN', queue) <= 128 then
    call('LREM', queue, -1, entry)
  elseif call('LINDEX', queue, -1) == entry then
    call('RPOP', queue)
  else
    compact()
  end
end

-- R3: a copy of an acquire can arrive after its owner has left. Until `copies_until`, when the server starts
-- to refuse it anyway (R2), the tombstone tells acquire that this owner has left up to `seq`.
local function set_tombstone(seq, copies_until)
  if copies_until < now then return end
  local earlier = tonumber(call('GET', tombstone) or 0) or 0
  -- Neither the seq nor the lifetime of an earlier tombstone shrinks: its own copies may still arrive.
  local lifetime = math.max(call('PTTL', tombstone), copies_until - now + 1000)
  call('SET', tombstone, WHOLE:format(math.max(seq, earlier)), 'PX', lifetime)
end
