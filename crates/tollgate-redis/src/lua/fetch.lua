-- A state as it is, with the time, and whether it was carried back before. KEYS: state, mark. ARGV: the
-- tag it should have, and how many bytes are before it.
-- A state of another quota is closed: its tag gets a last byte that no tag has, so nobody takes from it
-- until somebody has carried it over. Whoever meets a closed one does that.
local key, tag, head = KEYS[1], ARGV[1], tonumber(ARGV[2])
local function closed(v)
  if string.sub(v, head + 1) == tag or string.byte(v, -1) == 255 then return nil end
  return v .. '\255'
end
local value
if redis.call('TYPE', key)['ok'] == 'list' then
  local v = closed(redis.call('LINDEX', key, 0))
  if v then redis.call('LSET', key, 0, v) end
  value = redis.call('LRANGE', key, 0, -1)
else
  value = redis.call('GET', key)
  local v = value and closed(value)
  if v then
    redis.call('SET', key, v, 'KEEPTTL')
    value = v
  end
end
return { struct.pack('<d', now), value or false, redis.call('EXISTS', KEYS[2]) }
