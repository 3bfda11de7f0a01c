local life -- only of GCRA
-- 2^40, of one window. The sums go on while there are entries, and have 8192 windows of that.
local MOST = 1099511627776
local function up_to(s, _, _, _, parameters, key)
  local w, limit, most = struct.unpack('<ddd', parameters)
  s.cost = math.max(0, math.min(most, limit - (s.sum - s.base)))
  if s.cost < most then s.retry = freed(key, s, s.sum - s.base + s.cost + 1 - limit, w) end
  return s.cost, s
end
local function charge(s, _, _, _, parameters, partly)
  local _, _, cost = struct.unpack('<ddd', parameters)
  local used = s.sum - s.base
  if partly then cost = math.max(0, math.min(cost, MOST - used)) end
  if cost < 0 or used + cost > MOST then return false, s end
  s.cost = cost
  return true, s
end
-- Takes up to `most` off the entry at `index`, and brings the sums after it in order.
local function take_from(key, s, index, most)
  local time, sum = entry(key, index)
  local before = s.base
  if index > s.gone + 1 then
    local _, last = entry(key, index - 1)
    before = last
  end
  local amount = math.min(most, sum - before)
  if amount <= 0 then return 0 end
  if amount == s.sum - s.base then
    redis.call('DEL', key)
    s.sum, s.length, s.newest = s.base, 0, nil
    return amount
  end
  local rest = redis.call('LRANGE', key, index, -1)
  redis.call('LTRIM', key, 0, index - 1)
  if sum - amount > before then redis.call('RPUSH', key, struct.pack('<dd', time, sum - amount)) end
  for i = 2, #rest do
    local later, total = struct.unpack('<dd', rest[i])
    redis.call('RPUSH', key, struct.pack('<dd', later, total - amount))
  end
  s.sum = s.sum - amount
  s.length = redis.call('LLEN', key) - 1
  s.newest = entry(key, -1)
  return amount
end
local function give_back(key, s, mark, most)
  local at = first(key, s.gone + 1, s.length, function(time) return time >= mark end)
  if at > s.length or entry(key, at) ~= mark then return 0 end
  return take_from(key, s, at, most)
end
-- The newest first, which would stay longest.
local function refund(s, _, _, _, parameters, key)
  local _, _, cost = struct.unpack('<ddd', parameters)
  local left = cost
  while left > 0 and s.length > s.gone do
    local amount = take_from(key, s, s.length, left)
    if amount <= 0 then break end
    left = left - amount
  end
  return struct.pack('<d', cost - left), s
end
