-- Fixed windows that start with the first event. The state: start of the window, count.
-- Parameters: length, limit, cost (< 0: never passes).
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
local function judge(start, count, _, _, parameters)
  local _, limit, cost = struct.unpack('<ddd', parameters)
  if cost < 0 or count > limit or count + cost > limit then return false, start, count end
  return true, start, count + cost
end
local function write(key, start, count, _, _, tag, ttl)
  redis.call('SET', key, struct.pack('<dd', start, count) .. tag, 'PX', ttl)
end
local function show(start, count)
  return struct.pack('<dd', start, count)
end
