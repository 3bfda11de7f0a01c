-- Fixed windows that start with the first event. The state: start of the window, count.
local function read(key, now, tag, parameters)
  local v = redis.call('GET', key)
  if not v then return now, 0 end
  if string.sub(v, 17) ~= tag then return nil, v end
  local start, count = struct.unpack('<dd', v)
  -- The clock went back: the window starts now, with what is counted.
  if start > now then return now, count, nil, true end
  if now >= start + struct.unpack('<d', parameters) then return now, 0 end
  return start, count
end
