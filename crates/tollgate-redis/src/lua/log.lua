-- Sliding window log. The state is a list: first the sum of all costs that have left, then each entry
-- as its time and the sum of all costs up to it.
-- Parameters: length, limit, cost (< 0: never passes).
local function entry(key, at)
  return struct.unpack('<dd', redis.call('LINDEX', key, at))
end
-- The first index from `low` to `high` whose entry satisfies `test`; high + 1 if none does.
local function first(key, low, high, test)
  local step = 1
  local below = low - 1
  -- As a rule it is among the first few.
  while below + step <= high and not test(entry(key, below + step)) do
    below, step = below + step, step * 2
  end
  high = math.min(high + 1, below + step)
  while high - below > 1 do
    local middle = math.floor((below + high) / 2)
    if test(entry(key, middle)) then high = middle else below = middle end
  end
  return high
end
-- Returns a table: at (the time, not before the newest entry), newest, base, sum (sums of costs),
-- gone (entries that have left), length.
local function read(key, now, parameters)
  local head = redis.call('LINDEX', key, 0)
  if not head then return { at = now, base = 0, sum = 0, gone = 0, length = 0, cost = 0, retry = 0 } end
  local w = struct.unpack('<d', parameters)
  local s = { base = struct.unpack('<d', head), gone = 0, cost = 0, retry = 0 }
  s.length = redis.call('LLEN', key) - 1
  local newest
  newest, s.sum = entry(key, -1)
  s.newest = newest
  if newest - now > w then
    -- The clock went back by more than a window: what is counted counts as of now.
    local cost = s.sum - s.base
    redis.call('DEL', key)
    redis.call('RPUSH', key, struct.pack('<d', 0), struct.pack('<dd', now, cost))
    redis.call('PEXPIRE', key, math.ceil(w / 1000) + GRACE + 1)
    return { at = now, newest = now, base = 0, sum = cost, gone = 0, length = 1, cost = 0, retry = 0 }
  end
  s.at = math.max(now, newest)
  local oldest = s.at - w
  local live = first(key, 1, s.length, function(time) return time > oldest end)
  if live > 1 then
    s.gone = live - 1
    local _, base = entry(key, s.gone)
    s.base = base
  end
  return s
end
-- When so much of the oldest has left.
local function freed(key, s, needed, w)
  local target = s.base + needed
  local at = first(key, s.gone + 1, s.length, function(_, sum) return sum >= target end)
  -- What a call has not written yet (a key named twice) leaves a window from now.
  if at > s.length then return s.at + w end
  return entry(key, at) + w
end
local function judge(s, _, _, _, parameters, key)
  local w, limit, cost = struct.unpack('<ddd', parameters)
  local used = s.sum - s.base + s.cost
  if cost < 0 then return false, s end
  if used > limit or used + cost > limit then
    s.retry = freed(key, s, used + cost - limit, w)
    return false, s
  end
  s.cost = s.cost + cost
  return true, s
end
local function append(key, s, cost, parameters)
  local w, limit = struct.unpack('<dd', parameters)
  if s.length == s.gone then
    if s.length > 0 then redis.call('DEL', key) end
    redis.call('RPUSH', key, struct.pack('<d', 0), struct.pack('<dd', s.at, cost))
    s.base, s.sum, s.length = 0, cost, 1
  else
    if s.gone > 0 then
      redis.call('LSET', key, s.gone, struct.pack('<d', s.base))
      redis.call('LTRIM', key, s.gone, -1)
      s.length = s.length - s.gone
    end
    s.sum = s.sum + cost
    local packed = struct.pack('<dd', s.at, s.sum)
    if s.newest == s.at or s.length >= math.max(limit, 1) then
      redis.call('LSET', key, -1, packed)
    else
      redis.call('RPUSH', key, packed)
      s.length = s.length + 1
    end
  end
  s.gone, s.newest = 0, s.at
  redis.call('PEXPIRE', key, math.ceil(w / 1000) + GRACE + 1)
end
local function write(key, s, _, _, _, _, parameters)
  if s.cost > 0 then append(key, s, s.cost, parameters) s.cost = 0 end
end
local function show(s)
  return struct.pack('<dddd', s.sum - s.base + s.cost, s.retry, s.newest or 0, s.at)
end
