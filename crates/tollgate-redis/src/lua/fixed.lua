-- Fixed windows that start at multiples of their length. The state: number of the window, count.
local function read(key, now, parameters)
  local v = redis.call('GET', key)
  local w = struct.unpack('<d', parameters)
  local number = math.floor(now / w)
  if not v then return number, 0 end
  local k, count = struct.unpack('<dd', v)
  if k < number then return number, 0 end
  -- The clock went back by more than a window: what is counted counts in this one.
  if k > number + 1 then return number, count, nil, true end
  return k, count
end
