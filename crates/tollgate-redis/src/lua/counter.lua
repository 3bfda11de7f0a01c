-- Sliding window counter. The state: number of the window, counts of the last one and of this one. What was
-- booked beyond the limit is carried into later windows, one limit each: then this window is a later one, the
-- last count is CARRIED and what it was when that was booked, and the time of writing follows.
-- Parameters: length, limit, cost (< 0: never passes).
local CARRIED = 1125899906842624 -- 2^50
local function read(key, now, parameters)
  local v = redis.call('GET', key)
  local w, limit = struct.unpack('<dd', parameters)
  local number = math.floor(now / w)
  if not v then return number, 0, 0 end
  local k, previous, current = struct.unpack('<ddd', v)
  if previous >= CARRIED then
    -- The clock went back: no window has passed since the state was written.
    local back = math.floor(struct.unpack('<d', v, 25) / w) - number
    if back > 0 then k = k - back end
    if k > number then return k, previous, current, back > 0 end
    if k == number then return k, limit, current end
  end
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
  if cost < 0 or previous >= CARRIED then return false, k, previous, current end
  local sum = used(k, previous, current, now, w)
  if sum > limit or sum + cost > limit then return false, k, previous, current end
  return true, k, previous, current + cost
end
local function carried(k, previous, current, parameters)
  local _, limit = struct.unpack('<dd', parameters)
  if previous >= CARRIED or limit == 0 or current <= limit then return k, previous, current end
  local windows = math.floor((current - 1) / limit)
  return k + windows, previous + CARRIED, current - windows * limit
end
local function write(key, k, previous, current, now, ttl, parameters)
  k, previous, current = carried(k, previous, current, parameters)
  local state = struct.pack('<ddd', k, previous, current)
  if previous >= CARRIED then
    state = state .. struct.pack('<d', now)
    ttl = ttl + math.ceil((k * struct.unpack('<d', parameters) - now) / 1000)
  end
  redis.call('SET', key, state, 'PX', ttl)
end
local function show(k, previous, current)
  return struct.pack('<ddd', k, previous, current)
end
