local life -- only of GCRA
-- 2^40, of one window. The sums go on while there are entries, and have 8192 windows of that.
local MOST = 1099511627776
local YEARS = 141912000000000 -- microseconds in which a debt is paid off: 4.5 years
local function up_to(s, _, _, _, parameters, key)
  local w, limit, most = struct.unpack('<ddd', parameters)
  s.cost = math.max(0, math.min(most, limit - s.used))
  if s.cost < most then s.retry = freed(key, s, s.used + s.cost + 1 - limit, w) end
  return s.cost, s
end
local function charge(s, _, _, _, parameters, partly)
  local w, limit, cost = struct.unpack('<ddd', parameters)
  local most = MOST
  if limit > 0 then most = math.min(MOST, limit * (math.floor(YEARS / w) - 1)) end
  if partly then cost = math.max(0, math.min(cost, most - s.used)) end
  if cost < 0 or cost > most - s.used then return false, s end
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
    s.sum, s.length, s.gone, s.newest = s.base, 0, 0, nil
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
-- Removes what is owed of the mark, too.
local function give_back(key, s, mark, most, parameters)
  local w, limit = struct.unpack('<dd', parameters)
  if most <= 0 or mark + w <= s.at then return 0 end
  local was_owed = s.owed > 0
  if was_owed then pay(key, s, w) end
  local taken = 0
  local at = first(key, s.gone + 1, s.length, function(time) return time >= mark end)
  if at <= s.length and entry(key, at) == mark then taken = take_from(key, s, at, most) end
  local unpaid = math.min(s.owed, most - taken)
  s.owed = s.owed - unpaid
  if was_owed and (s.owed > 0 or s.length > 0) then place(key, s, w, limit) end
  return taken + unpaid
end
-- What is owed first, and then the newest: these would stay longest.
local function refund(s, _, _, _, parameters, key)
  local w, limit, cost = struct.unpack('<ddd', parameters)
  local left = cost
  if s.owed > 0 and left > 0 then
    pay(key, s, w)
    local unpaid = math.min(s.owed, left)
    s.owed, left = s.owed - unpaid, left - unpaid
    if s.length > 0 then redis.call('LSET', key, 0, head(s.base, s.owed)) expire(key, w, s.owed, s.sum - s.base) end
  end
  while left > 0 and s.length > s.gone do
    local amount = take_from(key, s, s.length, left)
    if amount <= 0 then break end
    left = left - amount
  end
  return struct.pack('<d', cost - left), s
end
