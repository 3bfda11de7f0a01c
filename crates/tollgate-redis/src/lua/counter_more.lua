local life -- only of GCRA
local MOST = 140737488355328 -- 2^47
local function up_to(k, previous, current, now, parameters)
  local w, limit, most = struct.unpack('<ddd', parameters)
  local free = limit - used(k, previous, current, now, w)
  local granted = math.max(0, math.min(most, free))
  return granted, k, previous, current + granted
end
local function charge(k, previous, current, _, parameters, partly)
  local _, _, cost = struct.unpack('<ddd', parameters)
  if partly then cost = math.max(0, math.min(cost, MOST - current)) end
  if cost < 0 or current + cost > MOST then return false, k, previous, current end
  return true, k, previous, current + cost
end
local function give_back(k, current, mark, amount)
  if k ~= mark then return 0, current end
  amount = math.min(amount, current)
  return amount, current - amount
end
local function refund(k, previous, current, _, parameters)
  local _, _, cost = struct.unpack('<ddd', parameters)
  local amount, left = give_back(k, current, k, cost)
  return struct.pack('<d', amount), k, previous, left
end
