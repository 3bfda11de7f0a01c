-- GCRA in exact fractions. The state: booked up to at + n/c microseconds, written at w.
-- Parameters: c, the cost as a + b/c microseconds (a < 0: never passes), the burst as ta + tb/c.
local function judge(at, n, _, now, parameters)
  local c, a, b, ta, tb = struct.unpack('<ddddd', parameters)
  if at < now then at, n = now, 0 end
  if a < 0 then return false, at, n end
  local x, y = at + a, n + b
  if y >= c then x, y = x + 1, y - c end
  local room = ta - (x - now)
  if room < 0 or (room == 0 and y > tb) then return false, at, n end
  return true, x, y
end
local function write(key, at, n, _, now, tag, ttl)
  redis.call('SET', key, struct.pack('<ddd', at, n, now) .. tag, 'PX', ttl)
end
local function show(at, n)
  return struct.pack('<dd', at, n)
end
