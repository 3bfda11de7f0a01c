-- Sliding window log. The state is a list: first the sum of all costs that have left, then each entry
-- as its time and the sum of all costs up to it. What was booked beyond the limit is owed: the head has it
-- after its sum, and it takes the places of the permits that leave, for another window each.
-- Parameters: length, limit, cost (< 0: never passes).
local function entry(key, at)
  return struct.unpack('<dd', redis.call('LINDEX', key, at))
end
local function head(base, owed)
  if owed > 0 then return struct.pack('<dd', base, owed) end
  return struct.pack('<d', base)
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
local function expire(key, w, owed, total)
  local windows = 1 + math.ceil(owed / math.max(1, total))
  redis.call('PEXPIRE', key, math.ceil(windows * w / 1000) + GRACE + 1)
end
-- When so many more permits have left.
local function freed(key, s, needed, w)
  local gone = s.freed + needed
  -- What a call has not written yet (a key named twice) leaves a window from now.
  if gone > s.total + s.owed then return s.at + w end
  local turns = math.floor((gone - 1) / s.total)
  local target = s.head + gone - turns * s.total
  local low = s.owed > 0 and 1 or s.gone + 1
  local at = first(key, low, s.length, function(_, sum) return sum >= target end)
  return entry(key, at) + w * (turns + 1)
end
-- Finds what has left by now. With something owed, the entries leave again and again, a window later each time.
local function look(key, s, w)
  local oldest = s.at - w
  local turns = 0
  if s.owed > 0 then
    turns = math.max(0, math.floor((oldest - entry(key, 1)) / w))
    oldest = oldest - turns * w
  end
  local live = first(key, 1, s.length, function(time) return time > oldest end)
  s.gone, s.base = live - 1, s.head
  if live > 1 then
    local _, base = entry(key, live - 1)
    s.base = base
  end
  s.total = s.sum - s.head
  s.freed = turns * s.total + s.base - s.head
  s.used = math.max(0, s.total + s.owed - s.freed)
  s.last = s.newest
  if s.owed > 0 and s.used > 0 then s.last = freed(key, s, s.used, w) - w end
end
-- Returns a table: at (the time, not before the newest entry), newest, head, base, sum (sums of costs before all,
-- before the live ones, and of all), gone (entries that have left), length; total (of all entries), owed, freed
-- (permits that have left since it was written), used, last (when the last of them was booked).
local function read(key, now, parameters)
  local first_item = redis.call('LINDEX', key, 0)
  local s = { at = now, head = 0, base = 0, sum = 0, gone = 0, length = 0, total = 0, owed = 0, freed = 0, used = 0,
    cost = 0, retry = 0 }
  if not first_item then return s end
  local w = struct.unpack('<d', parameters)
  s.head = struct.unpack('<d', first_item)
  if #first_item > 8 then s.owed = struct.unpack('<d', first_item, 9) end
  s.length = redis.call('LLEN', key) - 1
  s.newest, s.sum = entry(key, -1)
  -- A state that nobody can pay off is damaged.
  if not (s.sum > s.head) then s.owed = 0 end
  if s.newest - now > w then
    -- The clock went back by more than a window: what is counted counts as of now.
    s.sum, s.head, s.length, s.newest = s.sum - s.head, 0, 1, now
    redis.call('DEL', key)
    redis.call('RPUSH', key, head(0, s.owed), struct.pack('<dd', now, s.sum))
    expire(key, w, s.owed, s.sum)
  end
  s.at = math.max(now, s.newest)
  look(key, s, w)
  return s
end
local function judge(s, _, _, _, parameters, key)
  local w, limit, cost = struct.unpack('<ddd', parameters)
  local used = s.used + s.cost
  if cost < 0 then return false, s end
  if used > limit or used + cost > limit then
    s.retry = freed(key, s, used + cost - limit, w)
    return false, s
  end
  s.cost = s.cost + cost
  return true, s
end
-- Writes the list anew: owed permits have taken the places of those that have left. Each entry moves once at most,
-- because whole rounds are counted first.
local function pay(key, s, w)
  local items = redis.call('LRANGE', key, 1, -1)
  local times, costs, sum = {}, {}, s.head
  for i = 1, #items do
    local time, total = struct.unpack('<dd', items[i])
    times[i], costs[i], sum = time, total - sum, total
  end
  local turns = math.max(0, math.floor((s.at - w - times[1]) / w))
  turns = math.min(turns, math.floor(s.owed / s.total))
  s.owed = s.owed - turns * s.total
  for i = 1, #items do
    local time = times[i] + turns * w
    times[i] = time
    if s.owed > 0 and time + w <= s.at then
      local part = math.min(costs[i], s.owed)
      s.owed, costs[i] = s.owed - part, 0
      times[#times + 1], costs[#costs + 1] = time + w, part
    end
  end
  local list = {}
  sum = 0
  for i = 1, #times do
    if costs[i] > 0 and times[i] + w > s.at then
      sum = sum + costs[i]
      list[#list + 1] = struct.pack('<dd', times[i], sum)
      s.newest = times[i]
    end
  end
  redis.call('DEL', key)
  if #list > 0 then redis.call('RPUSH', key, head(0, s.owed)) end
  for i = 1, #list, 1000 do redis.call('RPUSH', key, unpack(list, i, math.min(i + 999, #list))) end
  s.head, s.base, s.sum, s.gone, s.length, s.total, s.freed = 0, 0, sum, 0, #list, sum, 0
  if #list == 0 then s.owed, s.newest = 0, nil end
end
-- Lets what is owed take the places that are free.
local function place(key, s, w, limit)
  local part, live = s.owed, s.sum - s.base
  if limit > 0 then part = math.min(part, math.max(0, limit - live)) end
  local owed = s.owed - part
  if s.length == s.gone then
    if s.length > 0 then redis.call('DEL', key) end
    redis.call('RPUSH', key, head(0, owed), struct.pack('<dd', s.at, part))
    s.base, s.sum, s.length, s.newest = 0, part, 1, s.at
  else
    if s.gone > 0 then
      redis.call('LTRIM', key, s.gone, -1)
      s.length = s.length - s.gone
    end
    redis.call('LSET', key, 0, head(s.base, owed))
    s.sum = s.sum + part
    local packed = struct.pack('<dd', s.at, s.sum)
    if part == 0 then
      -- Nothing is free.
    elseif s.newest == s.at or s.length >= math.max(limit, 1) then
      redis.call('LSET', key, -1, packed)
      s.newest = s.at
    else
      redis.call('RPUSH', key, packed)
      s.length, s.newest = s.length + 1, s.at
    end
  end
  s.gone, s.owed, s.head = 0, owed, s.base
  expire(key, w, owed, s.sum - s.base)
end
local function append(key, s, cost, parameters)
  local w, limit = struct.unpack('<dd', parameters)
  if s.owed > 0 and s.freed <= s.owed and limit > 0 and s.total >= limit then
    -- It is owed as the rest is.
    s.owed = s.owed + cost
    redis.call('LSET', key, 0, head(s.head, s.owed))
    expire(key, w, s.owed, s.total)
  else
    if s.owed > 0 then pay(key, s, w) end
    s.owed = s.owed + cost
    place(key, s, w, limit)
  end
  s.total = s.sum - s.head
  s.freed, s.used, s.last = 0, s.total, s.newest
  if s.owed > 0 then look(key, s, w) end
end
local function write(key, s, _, _, _, _, parameters)
  if s.cost > 0 then append(key, s, s.cost, parameters) s.cost = 0 end
end
local function show(s)
  return struct.pack('<dddd', s.used + s.cost, s.retry, s.last or 0, s.at)
end
