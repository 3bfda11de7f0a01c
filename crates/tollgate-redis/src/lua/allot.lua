-- One process reports, and gets its share of a capacity. The script is the coordinator.
-- KEYS[1]  hash: process -> row; '!' -> end of learning
-- ARGV     1 process  2 its run  3 number of the report  4 verb (report or leave)
--          5 has  6 wants  7 weight  8 band
--          9 capacity  10 sharing  11 its parameter  12 lease  13 learning  14 the most processes
-- Amounts are millionths of a permit per second, times are microseconds; all are integers below
-- 2^53, so that doubles are exact. allot/shares.rs is the twin of the formulas.
-- Returns {code, grant, processes, learning left}: 1 granted, 2 learning, 0 an old report,
-- -1 no room, -2 the name is in use.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local id, run, number = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local has, wants = tonumber(ARGV[5]), tonumber(ARGV[6])
local weight, band = tonumber(ARGV[7]), tonumber(ARGV[8])
local capacity, parameter = tonumber(ARGV[9]), tonumber(ARGV[11])
local lease, learning = tonumber(ARGV[12]), tonumber(ARGV[13])
-- wants, granted, held, end of the lease, number, run, weight, band
local ROW = '<ddddddHB'

-- Read the table: wants, weights and bands of the others go to three arrays. What others may hold counts, not what they were granted last: a smaller grant
-- is in force only when its holder has said so.
local W, G, B, n = {}, {}, {}, 0
local mine, learn_until = nil, nil
local live, held, latest, dead, mine_dead = 0, 0, now + lease, {}, false
local cells = redis.call('HGETALL', KEYS[1])
for i = 1, #cells, 2 do
  local name = cells[i]
  if name == '!' then
    learn_until = struct.unpack('<d', cells[i + 1])
  else
    local w, granted, h, ends, nr, r, g, b = struct.unpack(ROW, cells[i + 1])
    if ends > now + 10 * lease then
      -- Set before the clock went back. Leases may differ while settings are rolled out, but not by
      -- that much.
      ends = now + lease
      redis.call('HSET', KEYS[1], name, struct.pack(ROW, w, granted, h, ends, nr, r, g, b))
    end
    if ends <= now then
      if name == id then mine_dead = true else dead[#dead + 1] = name end
    else
      live = live + 1
      if ends > latest then latest = ends end
      if name == id then
        mine = {granted = granted, number = nr, run = r}
      else
        held = held + h
        n = n + 1
        W[n], G[n], B[n] = w, g, b
      end
    end
  end
end

if mine and mine.run ~= run then return {-2, 0, live, 0} end
if ARGV[4] == 'leave' then
  redis.call('HDEL', KEYS[1], id)
  if mine then live = live - 1 end
  return {1, 0, live, 0}
end
if mine and number <= mine.number then return {0, mine.granted, live, 0} end
if not mine then
  if live >= tonumber(ARGV[14]) then return {-1, 0, live, 0} end
  live = live + 1
end

if #dead > 0 then redis.call('HDEL', KEYS[1], unpack(dead)) end
-- The table is new, or everybody in it was away for a lease: nobody knows who holds what.
local nobody = live == 1 and not mine and (#dead > 0 or mine_dead)
-- An end further away than that was set before the clock went back.
if not learn_until or nobody or learn_until > now + learning then
  learn_until = now + learning
  redis.call('HSET', KEYS[1], '!', struct.pack('<d', learn_until))
end

-- The own row is the last.
n = n + 1
W[n], G[n], B[n] = wants, weight, band

-- floor(amount * weight / weights), exactly: weights are at most 500 * 1000.
local function part(amount, weight, weights)
  local rest = amount % weights
  return (amount - rest) / weights * weight + math.floor(rest * weight / weights)
end

-- floor(a * b / c), exactly, for a <= c < 2^51 and b < 2^50: one bit of b at a time.
local function scaled(a, b, c)
  local quotient, rest, bit = 0, 0, 562949953421312
  while bit >= 1 do
    quotient, rest = quotient * 2, rest * 2
    if b >= bit then b, rest = b - bit, rest + a end
    while rest >= c do quotient, rest = quotient + 1, rest - c end
    bit = bit / 2
  end
  return quotient
end

-- Whether all that `rows` (indices) want fits into the amount, and the sum of their weights.
local function all_fits(rows, amount)
  local total, weights = 0, 0
  for _, i in ipairs(rows) do
    weights = weights + G[i]
    if total <= amount then total = total + W[i] end
  end
  return total <= amount, weights
end

-- Water filling: whoever wants no more than its part of what is left gets it, until nobody does.
-- Most tables need few passes. What is left after eight is sorted, and served in that order: the
-- outcome is the same.
local function fair(rows, amount)
  local fits, weights = all_fits(rows, amount)
  if fits then return wants end
  for _ = 1, 8 do
    local rest = amount % weights
    local whole, kept, served, served_weight = (amount - rest) / weights, {}, 0, 0
    for _, i in ipairs(rows) do
      local w, g = W[i], G[i]
      if w <= whole * g + math.floor(rest * g / weights) then
        if i == n then return wants end
        served, served_weight = served + w, served_weight + g
      else
        kept[#kept + 1] = i
      end
    end
    if served_weight == 0 then return part(amount, weight, weights) end
    rows, amount, weights = kept, amount - served, weights - served_weight
  end
  -- By wants / weight, as a whole number and a fraction.
  table.sort(rows, function(a, b)
    local ra, rb = W[a] % G[a], W[b] % G[b]
    local la, lb = (W[a] - ra) / G[a], (W[b] - rb) / G[b]
    if la ~= lb then return la < lb end
    return ra * G[b] < rb * G[a]
  end)
  for _, i in ipairs(rows) do
    if W[i] > part(amount, G[i], weights) then break end
    if i == n then return wants end
    amount, weights = amount - W[i], weights - G[i]
  end
  return part(amount, weight, weights)
end

-- An equal part each; what some do not want goes to the others by how much more they want.
local function proportional(rows, amount)
  local fits, weights = all_fits(rows, amount)
  if fits then return wants end
  local equal = part(amount, weight, weights)
  if wants <= equal then return wants end
  local spare, more, coarse = 0, 0, 0
  for _, i in ipairs(rows) do
    local beyond = W[i] - part(amount, G[i], weights)
    if beyond < 0 then
      spare = spare - beyond
    else
      more = more + beyond
      coarse = coarse + math.floor(beyond / 512)
    end
  end
  if more < 2251799813685248 then return equal + scaled(wants - equal, spare, more) end
  return equal + scaled(math.floor((wants - equal) / 512), spare, coarse)
end

-- Higher bands (smaller numbers) first, except for the floor of each lower one; fair inside.
local function bands(amount, floor)
  local sums, inside = {}, {}
  for b = 0, 7 do sums[b] = 0 end
  for i = 1, n do
    local b = B[i]
    sums[b] = math.min(amount, sums[b] + math.min(amount, W[i]))
    if b == band then inside[#inside + 1] = i end
  end
  local lower = 0
  for b = 0, 7 do lower = lower + math.min(floor, sums[b]) end
  local left = amount
  for b = 0, band do
    lower = lower - math.min(floor, sums[b])
    local given = math.min(sums[b], left - lower)
    if b == band then return fair(inside, given) end
    left = left - given
  end
end

local function everybody()
  local rows = {}
  for i = 1, n do rows[i] = i end
  return rows
end

local unused = math.max(0, capacity - held)
local code, grant = 1, 0
if now < learn_until then
  code, grant = 2, has
elseif ARGV[10] == 'static' then
  grant = math.min(parameter, wants)
elseif ARGV[10] == 'proportional' then
  grant = proportional(everybody(), capacity)
elseif ARGV[10] == 'fair' then
  grant = fair(everybody(), capacity)
else
  grant = bands(capacity, parameter)
end
grant = math.min(grant, unused)

local row = struct.pack(ROW, wants, grant, math.max(has, grant), now + lease, number, run,
  weight, band)
redis.call('HSET', KEYS[1], id, row)
redis.call('PEXPIRE', KEYS[1], math.ceil((math.max(latest, learn_until) - now) / 1000) + 1)
return {code, grant, live, math.max(0, learn_until - now)}
