-- Sliding window counter. The state: number of the window, counts of the last one and of this one.
-- Parameters: length, limit, cost (< 0: never passes).
local function read(key, now, parameters)
  local v = redis.call('GET', key)
  local number = math.floor(now / struct.unpack('<d', parameters))
  if not v then return number, 0, 0 end
  local k, previous, current = struct.unpack('<ddd', v)
  if k == number - 1 then return number, current, 0 end
  if k < number then return number, 0, 0 end
  -- The clock went back by more than a window: what is counted counts as of this one.
  if k > number + 1 then return number, previous, current, true end
  return k, previous, current
end
local function used(k, previous, current, now, w)
  local elapsed = math.max(0, now - k * w)
  local weight = w - elapsed
  local whole = share(previous, weight, w)
  -- ceil(x) - 1: what is exactly one window old is outside.
  if whole > 0 and products(previous, weight, whole, w) == 0 then whole = whole - 1 end
  return whole + current
end
local function judge(k, previous, current, now, parameters)
  local w, limit, cost = struct.unpack('<ddd', parameters)
  local sum = used(k, previous, current, now, w)
  if cost < 0 or sum > limit or sum + cost > limit then return false, k, previous, current end
  return true, k, previous, current + cost
end
local function write(key, k, previous, current, _, ttl)
  redis.call('SET', key, struct.pack('<ddd', k, previous, current), 'PX', ttl)
end
local function show(k, previous, current)
  return struct.pack('<ddd', k, previous, current)
end
