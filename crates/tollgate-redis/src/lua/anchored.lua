-- Fixed windows that start with the first event. The state: start of the window, count.
-- A window ends at a round time, as in the library: 1, 2 or 5 x 10^k us, at most a 1000th of its length.
local function grain(length)
  local g, most = 1, length / 1000
  while 10 * g <= most do g = 10 * g end
  if 5 * g <= most then return 5 * g end
  if 2 * g <= most then return 2 * g end
  return g
end
local function read(key, now, parameters)
  local length = struct.unpack('<d', parameters)
  local g = grain(length)
  local fresh = now + (-(now + length)) % g
  local v = redis.call('GET', key)
  if not v then return fresh, 0 end
  local start, count = struct.unpack('<dd', v)
  -- The clock went back: the window starts now, with what is counted.
  if start > fresh then return fresh, count, nil, true end
  if count == 0 or now >= start + length then return fresh, 0 end
  return start, count
end
