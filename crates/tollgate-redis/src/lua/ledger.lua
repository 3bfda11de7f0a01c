-- Claims on a key by GCRA, oldest first: the id, and up to where its take has booked. 24 bytes each.
local function open(key, id, mark, ms, most, now)
  local v = redis.call('GET', key) or ''
  local kept = {}
  for at = 1, #v, 24 do
    if struct.unpack('<d', v, at + 8) >= now then kept[#kept + 1] = string.sub(v, at, at + 23) end
  end
  if #kept >= tonumber(most) then return false end
  kept[#kept + 1] = id .. string.sub(mark, 1, 16)
  local left = redis.call('PTTL', key)
  redis.call('SET', key, table.concat(kept), 'PX', math.max(left, tonumber(ms)))
  return true
end
-- Lowers the marks of all claims from byte `from` on by a + b/c.
local function lower(v, from, a, b, c)
  local parts = { string.sub(v, 1, from - 1) }
  for at = from, #v, 24 do
    local m, l = struct.unpack('<dd', v, at + 8)
    m, l = m - a, l - b
    if l < 0 then m, l = m - 1, l + c end
    parts[#parts + 1] = string.sub(v, at, at + 7) .. struct.pack('<dd', m, l)
  end
  return table.concat(parts)
end
local function keep(key, v)
  if v == '' then redis.call('DEL', key) else redis.call('SET', key, v, 'KEEPTTL') end
end
