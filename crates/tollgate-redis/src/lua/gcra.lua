-- GCRA in exact fractions. The state: booked up to at + f/9000 microseconds, and when it was written; less
-- than zero if that is more than the burst of the quota by which it was booked: a debt.
-- Parameters: c, the cost as a + b/c microseconds (a < 0: never passes), the burst as ta + tb/c, and since
-- when the quota is in force. Here the state is at + n/c, and whether that is a debt: nil if it is one when it
-- is more than the burst.
-- Returns the n with n/c = f/9000, rounded up. A whole number comes back as it was: c is at most 2^40, so
-- doubles are off by less than a thousandth.
local function in_parts(f, c)
  return math.ceil(f * c / 9000 - 0.001)
end
local function is_beyond(at, n, from, ta, tb)
  return at - from > ta or (at - from == ta and n > tb)
end
local function read(key, now, parameters)
  local v = redis.call('GET', key)
  if not v then return now, 0 end
  local at, f, w = struct.unpack('<ddd', v)
  local c, _, _, ta, tb, since = struct.unpack('<dddddd', parameters)
  local n = in_parts(f, c)
  local is_owed = w < 0
  w = math.abs(w)
  -- The clock went back: no time has passed since the state was written.
  if w > now then return at - (w - now), n, is_owed, true end
  -- A longer quota has left more than the burst: nobody stays refused by it for longer than this quota takes to
  -- refill, or up to a quarter longer. This does not depend on the time now: else a named wait would not hold.
  if w <= since and not is_owed and at - since > 1.25 * ta + 1 then
    return since + ta, tb
  end
  return at, n, is_owed
end
local function judge(at, n, is_owed, now, parameters)
  local c, a, b, ta, tb = struct.unpack('<ddddd', parameters)
  if at < now then at, n = now, 0 end
  if a < 0 then return false, at, n, is_owed end
  local x, y = at + a, n + b
  if y >= c then x, y = x + 1, y - c end
  local room = ta - (x - now)
  if room < 0 or (room == 0 and y > tb) then return false, at, n, is_owed end
  return true, x, y
end
local function write(key, at, n, is_owed, now, ttl, parameters)
  local c, _, _, ta, tb = struct.unpack('<ddddd', parameters)
  local w = is_owed ~= false and is_beyond(at, n, now, ta, tb) and -now or now
  redis.call('SET', key, struct.pack('<ddd', at, n * 9000 / c, w), 'PX', ttl)
end
local function show(at, n)
  return struct.pack('<dd', at, n)
end
