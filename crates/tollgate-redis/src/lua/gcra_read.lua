local function read(key, now, tag)
  local v = redis.call('GET', key)
  if not v then return now, 0 end
  if string.sub(v, 25) ~= tag then return nil, v end
  local at, n, w = struct.unpack('<ddd', v)
  -- The clock went back: no time has passed since the state was written.
  if w > now then return at - (w - now), n, nil, true end
  return at, n
end
