-- What else can be done. Parameters continue: the cost of one permit as p/c, and whether products
-- are too large to be exact.
local YEARS = 144115188075855 -- microseconds that may be booked ahead: 2^57 ns, or the burst
local function up_to(at, n, _, now, parameters)
  local c, most, _, ta, tb, _, p, wide = struct.unpack('<dddddddd', parameters)
  if at < now then at, n = now, 0 end
  local room = ta - (at - now)
  local free = math.floor((room * c + tb - n) / p)
  if wide > 0 then free = free - 1 end
  local granted = math.min(most, free)
  if granted < 1 then return 0, at, n end
  local a = math.floor(granted * p / c)
  local b = granted * p - a * c
  if wide > 0 then a, b = a + 2, 0 end
  local x, y = at + a, n + b
  if y >= c then x, y = x + 1, y - c end
  return granted, x, y
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
-- Takes a + b/c off what is booked, but not more than is still ahead of now, nor of the mark m + l/c.
-- Returns what was taken off, and the state.
local function give_back(at, n, now, c, a, b, m, l)
  if at < now then at, n = now, 0 end
  if m < now then return 0, 0, at, n end
  -- Somebody with another quota has moved the mark, in other fractions.
  if l >= c then l = 0 end
  if m - now < a or (m - now == a and l < b) then a, b = m - now, l end
  if at - now < a or (at - now == a and n < b) then a, b = at - now, n end
  local x, y = at - a, n - b
  if y < 0 then x, y = x - 1, y + c end
  return a, b, x, y
end
local function refund(at, n, _, now, parameters)
  local c, a, b = struct.unpack('<ddd', parameters)
  local da, db, x, y = give_back(at, n, now, c, a, b, at, n)
  return struct.pack('<dd', da, db), x, y
end
local function life(at, _, _, now)
  return math.ceil((at - now) / 1000) + 2
end
