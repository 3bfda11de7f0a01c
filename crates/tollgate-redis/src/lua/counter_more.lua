local life -- only of GCRA
local MOST = 140737488355328 -- 2^47
local YEARS = 141912000000000 -- microseconds in which a debt is paid off: 4.5 years
local function up_to(k, previous, current, now, parameters)
  local w, limit, most = struct.unpack('<ddd', parameters)
  if previous >= CARRIED then return 0, k, previous, current end
  local free = limit - used(k, previous, current, now, w)
  local granted = math.max(0, math.min(most, free))
  return granted, k, previous, current + granted
end
-- The same state as of this window, which counts all that is carried.
local function unrolled(k, previous, current, now, parameters)
  local w, limit = struct.unpack('<dd', parameters)
  if previous < CARRIED then return k, previous, current end
  local number = math.floor(now / w)
  return number, previous - CARRIED, (k - number) * limit + current
end
local function charge(k, previous, current, now, parameters, partly)
  local w, limit, cost = struct.unpack('<ddd', parameters)
  local number, before, sum = unrolled(k, previous, current, now, parameters)
  local most = MOST
  if limit > 0 then most = math.min(MOST, limit * (math.floor(YEARS / w) - 1)) end
  if partly then cost = math.max(0, math.min(cost, most - sum)) end
  if cost < 0 or cost > most - sum then return false, k, previous, current end
  return true, carried(number, before, sum + cost, parameters)
end
local function give_back(k, current, mark, amount)
  if k ~= mark then return 0, current end
  amount = math.min(amount, current)
  return amount, current - amount
end
local function refund(k, previous, current, now, parameters)
  local _, _, cost = struct.unpack('<ddd', parameters)
  local number, before, sum = unrolled(k, previous, current, now, parameters)
  local amount, left = give_back(number, sum, number, cost)
  return struct.pack('<d', amount), number, before, left
end
