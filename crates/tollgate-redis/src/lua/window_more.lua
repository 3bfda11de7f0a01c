local life -- only of GCRA
local MOST = 1125899906842624 -- 2^50
local function up_to(k, count, _, _, parameters)
  local _, limit, most = struct.unpack('<ddd', parameters)
  local granted = math.max(0, math.min(most, limit - count))
  return granted, k, count + granted
end
local function charge(k, count, _, _, parameters, partly)
  local _, _, cost = struct.unpack('<ddd', parameters)
  if partly then cost = math.max(0, math.min(cost, MOST - count)) end
  if cost < 0 or count + cost > MOST then return false, k, count end
  return true, k, count + cost
end
local function give_back(k, count, mark, amount)
  if k ~= mark then return 0, count end
  amount = math.min(amount, count)
  return amount, count - amount
end
local function refund(k, count, _, _, parameters)
  local _, _, cost = struct.unpack('<ddd', parameters)
  local amount, left = give_back(k, count, k, cost)
  return struct.pack('<d', amount), k, left
end
