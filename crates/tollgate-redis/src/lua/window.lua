-- One window and its count. The state: the window, by its number or its start, and the count.
-- Parameters: length, limit, cost (< 0: never passes).
local function judge(k, count, _, _, parameters)
  local _, limit, cost = struct.unpack('<ddd', parameters)
  if cost < 0 or count > limit or count + cost > limit then return false, k, count end
  return true, k, count + cost
end
local function write(key, k, count, _, _, ttl)
  redis.call('SET', key, struct.pack('<dd', k, count), 'PX', ttl)
end
local function show(k, count)
  return struct.pack('<dd', k, count)
end
