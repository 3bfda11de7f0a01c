-- Claims on a key, oldest first, of 41 bytes each: the id, the number of the demand, what its take has
-- left (up to where it has booked, by GCRA; else which window, or when), the permits of a window that it
-- can give back at most, and when it ends.
local SIZE = 41
local function open(key, id, mark, units, ms, most, now)
  local v = redis.call('GET', key) or ''
  local count = #v / SIZE
  -- Mostly none has ended, and then there is nothing to take apart.
  for from = 34, #v, SIZE do
    if struct.unpack('<d', v, from) <= now then
      local kept = {}
      for at = 1, #v, SIZE do
        if struct.unpack('<d', v, at + 33) > now then kept[#kept + 1] = string.sub(v, at, at + SIZE - 1) end
      end
      v, count = table.concat(kept), #kept
      break
    end
  end
  if count >= tonumber(most) then return false end
  local claim = id .. mark .. struct.pack('<dd', units, now + ms * 1000)
  local left = redis.call('PTTL', key)
  redis.call('SET', key, v .. claim, 'PX', math.max(left, ms + GRACE))
  return true
end
-- Takes a claim out of a ledger. Returns the others, where it was, and what it says; nil if it is not there.
local function close(v, id)
  for at = 1, #v, SIZE do
    if string.sub(v, at, at + 8) == id then
      local m, l, units = struct.unpack('<ddd', v, at + 9)
      return string.sub(v, 1, at - 1) .. string.sub(v, at + SIZE), at, m, l, units
    end
  end
end
-- Changes all claims from byte `from` on.
local function change(v, from, how)
  local parts = { string.sub(v, 1, from - 1) }
  for at = from, #v, SIZE do
    local m, l, units = how(struct.unpack('<ddd', v, at + 9))
    parts[#parts + 1] = string.sub(v, at, at + 8) .. struct.pack('<ddd', m, l, units)
    parts[#parts + 1] = string.sub(v, at + 33, at + SIZE - 1)
  end
  return table.concat(parts)
end
-- Lowers the marks of all claims from byte `from` on by a + b/c, if they are beyond least + rest/9000: of
-- those younger than what was given back.
local function lower(v, from, a, b, c, least, rest)
  return change(v, from, function(m, l, units)
    if m < least or (m == least and l <= rest) then return m, l, units end
    m, l = m - a, l - b * 9000 / c
    if l < 0 then m, l = m - 1, l + 9000 end
    return math.max(m, 0), l, units
  end)
end
-- Lets no claim reach beyond a + b/c, where the state's booking ends: a change of quota may have cut that, and what
-- was cut off cannot be given back. Of the claims beyond, the oldest keeps what is left.
local function cut(v, a, b, c)
  b = b * 9000 / c
  for at = 1, #v, SIZE do
    local m, l = struct.unpack('<dd', v, at + 9)
    if m > a or (m == a and l > b) then
      local x, y = a, b
      return change(v, at, function(m, l, units)
        if m < a or (m == a and l <= b) then return m, l, units end
        m, l, x, y = x, y, 0, 0
        return m, l, units
      end)
    end
  end
  return v
end
local function keep(key, v)
  if v == '' then redis.call('DEL', key) else redis.call('SET', key, v, 'KEEPTTL') end
end
-- What a state shows, as a mark: of GCRA in 9000ths of a microsecond.
local function marked(shown, p, is_gcra, is_log)
  if is_gcra then
    local at, n = struct.unpack('<dd', shown)
    return struct.pack('<dd', at, n * 9000 / struct.unpack('<d', p))
  end
  return string.sub(shown, is_log and 25 or 1, is_log and 32 or 8) .. struct.pack('<d', 0)
end
