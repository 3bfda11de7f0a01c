-- What else can be done. Parameters continue: the cost of one permit as pa + pb/c.
local YEARS = 144115188075855 -- microseconds that may be booked ahead: 2^57 ns, or the burst
local function up_to(at, n, _, now, parameters)
  local c, most, _, ta, tb, _, pa, pb = struct.unpack('<dddddddd', parameters)
  if at < now then at, n = now, 0 end
  -- Doubles are off by less than one permit: begin with one too many.
  local free = math.floor((ta - (at - now) + (tb - n) / c) / (pa + pb / c)) + 1
  for granted = math.min(most, free), 1, -1 do
    local whole = share(granted, pb, c)
    local x, y = at + granted * pa + whole, n + products(granted, pb, whole, c)
    if y >= c then x, y = x + 1, y - c end
    if not is_beyond(x, y, now, ta, tb) then return granted, x, y end
  end
  return 0, at, n
end
local function charge(at, n, _, now, parameters, partly)
  local c, a, b, ta = struct.unpack('<dddd', parameters)
  if at < now then at, n = now, 0 end
  local x, y = at + a, n + b
  if y >= c then x, y = x + 1, y - c end
  local most = now + math.max(YEARS, ta + 1)
  if a >= 0 and x <= most then return true, x, y end
  if not partly then return false, at, n end
  -- What is booked beyond that already stays.
  if at >= most then return true, at, n end
  return true, most, 0
end
-- Takes a + b/c off what is booked, but not more than is still ahead of now, nor of the mark m + l/9000.
-- Returns what was taken off, and the state.
local function give_back(at, n, now, c, a, b, m, l)
  if at < now then at, n = now, 0 end
  if m < now then return 0, 0, at, n end
  l = in_parts(l, c)
  if m - now < a or (m - now == a and l < b) then a, b = m - now, l end
  if at - now < a or (at - now == a and n < b) then a, b = at - now, n end
  local x, y = at - a, n - b
  if y < 0 then x, y = x - 1, y + c end
  return a, b, x, y
end
local function refund(at, n, is_owed, now, parameters)
  local c, a, b = struct.unpack('<ddd', parameters)
  local da, db, x, y = give_back(at, n, now, c, a, b, at, n * 9000 / c)
  return struct.pack('<dd', da, db), x, y, is_owed
end
local function life(at, _, _, now)
  return math.ceil((at - now) / 1000) + 2
end
