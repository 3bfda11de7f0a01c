-- The quota comes with each call: only the fraction must be brought to its denominator.
local function read(key, now, tag)
  local v = redis.call('GET', key)
  if not v then return now, 0 end
  local at, n, w, d = struct.unpack('<dddd', v)
  if string.sub(v, 25) ~= tag then
    local c = struct.unpack('<d', tag)
    n = math.ceil(n * c / d)
    if n >= c then at, n = at + 1, 0 end
  end
  if w > now then return at - (w - now), n, nil, true end
  return at, n
end
