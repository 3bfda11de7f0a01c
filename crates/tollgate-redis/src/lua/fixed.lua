-- Fixed windows that start at multiples of their length. The state: number of the window, count.
-- Parameters: length, limit, cost (< 0: never passes).
local function read(key, now, tag, parameters)
  local v = redis.call('GET', key)
  local w = struct.unpack('<d', parameters)
  local number = math.floor(now / w)
  if not v then return number, 0 end
  if string.sub(v, 17) ~= tag then return nil, v end
  local k, count = struct.unpack('<dd', v)
  if k < number then return number, 0 end
  -- The clock went back by more than a window: what is counted counts in this one.
  if k > number + 1 then return number, count, nil, true end
  return k, count
end
local function judge(k, count, _, _, parameters)
  local _, limit, cost = struct.unpack('<ddd', parameters)
  if cost < 0 or count > limit or count + cost > limit then return false, k, count end
  return true, k, count + cost
end
local function write(key, k, count, _, _, tag, ttl)
  redis.call('SET', key, struct.pack('<dd', k, count) .. tag, 'PX', ttl)
end
local function show(k, count)
  return struct.pack('<dd', k, count)
end
