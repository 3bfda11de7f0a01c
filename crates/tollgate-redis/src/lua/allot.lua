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

-- Read the table. What others may hold counts, not what they were granted last: a smaller grant
-- is in force only when its holder has said so.
local rows, mine, learn_until = {}, nil, nil
local live, held, latest, dead, mine_dead = 0, 0, now + lease, {}, false
local cells = redis.call('HGETALL', KEYS[1])
for i = 1, #cells, 2 do
  local name = cells[i]
  if name == '!' then
    learn_until = struct.unpack('<d', cells[i + 1])
  else
    local w, g, h, ends, n, r, wt, b = struct.unpack(ROW, cells[i + 1])
    if ends <= now then
      if name == id then mine_dead = true else dead[#dead + 1] = name end
    else
      live = live + 1
      if ends > latest then latest = ends end
      if name == id then
        mine = {granted = g, number = n, run = r}
      else
        held = held + h
        rows[#rows + 1] = {wants = w, weight = wt, band = b}
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
if not learn_until or nobody then
  learn_until = now + learning
  redis.call('HSET', KEYS[1], '!', struct.pack('<d', learn_until))
end

local own = {wants = wants, weight = weight, band = band}
rows[#rows + 1] = own

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

local function all_fits(rows, amount)
  local total = 0
  for _, row in ipairs(rows) do
    total = total + row.wants
    if total > amount then return false end
  end
  return true
end

-- Water filling: those who want least for their weight are served first.
local function fair(rows, amount)
  if all_fits(rows, amount) then return own.wants end
  local weights = 0
  for _, row in ipairs(rows) do
    weights = weights + row.weight
    row.rest = row.wants % row.weight
    row.level = (row.wants - row.rest) / row.weight
  end
  table.sort(rows, function(a, b)
    if a.level ~= b.level then return a.level < b.level end
    return a.rest * b.weight < b.rest * a.weight
  end)
  for _, row in ipairs(rows) do
    if row.wants > part(amount, row.weight, weights) then break end
    if row == own then return own.wants end
    amount, weights = amount - row.wants, weights - row.weight
  end
  return part(amount, own.weight, weights)
end

-- An equal part each; what some do not want goes to the others by how much more they want.
local function proportional(rows, amount)
  if all_fits(rows, amount) then return own.wants end
  local weights = 0
  for _, row in ipairs(rows) do weights = weights + row.weight end
  local equal = part(amount, own.weight, weights)
  if own.wants <= equal then return own.wants end
  local spare, more, coarse = 0, 0, 0
  for _, row in ipairs(rows) do
    local theirs = part(amount, row.weight, weights)
    if row.wants < theirs then
      spare = spare + theirs - row.wants
    else
      more = more + row.wants - theirs
      coarse = coarse + math.floor((row.wants - theirs) / 512)
    end
  end
  if more < 2251799813685248 then return equal + scaled(own.wants - equal, spare, more) end
  return equal + scaled(math.floor((own.wants - equal) / 512), spare, coarse)
end

-- Higher bands (smaller numbers) first, except for the floor of each lower one; fair inside.
local function bands(rows, amount, floor)
  local sums, inside = {}, {}
  for b = 0, 7 do sums[b] = 0 end
  for _, row in ipairs(rows) do
    sums[row.band] = math.min(amount, sums[row.band] + math.min(amount, row.wants))
    if row.band == own.band then inside[#inside + 1] = row end
  end
  local lower = 0
  for b = 0, 7 do lower = lower + math.min(floor, sums[b]) end
  local left = amount
  for b = 0, own.band do
    lower = lower - math.min(floor, sums[b])
    local given = math.min(sums[b], left - lower)
    if b == own.band then return fair(inside, given) end
    left = left - given
  end
end

local unused = math.max(0, capacity - held)
local code, grant = 1, 0
if now < learn_until then
  code, grant = 2, has
elseif ARGV[10] == 'static' then
  grant = math.min(parameter, wants)
elseif ARGV[10] == 'proportional' then
  grant = proportional(rows, capacity)
elseif ARGV[10] == 'fair' then
  grant = fair(rows, capacity)
else
  grant = bands(rows, capacity, parameter)
end
grant = math.min(grant, unused)

local row = struct.pack(ROW, wants, grant, math.max(has, grant), now + lease, number, run,
  weight, band)
redis.call('HSET', KEYS[1], id, row)
redis.call('PEXPIRE', KEYS[1], math.ceil((math.max(latest, learn_until) - now) / 1000) + 1)
return {code, grant, live, math.max(0, learn_until - now)}
