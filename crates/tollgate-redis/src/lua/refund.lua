-- Gives back what is outstanding. KEYS: state, ledger. ARGV: parameters, time to live.
local key, p, ttl = KEYS[1], ARGV[1], ARGV[2]
local s1, s2, s3 = read(key, now, p)
local amount, a, b, c = refund(s1, s2, s3, now, p, key)
if life then
  -- GCRA. Nobody knows whose permits these were, so every open claim is worth less.
  local da, db = struct.unpack('<dd', amount)
  if da + db > 0 then
    if a <= now and b == 0 then
      redis.call('DEL', key)
    else
      write(key, a, b, c, now, life(a, b, c, now) + GRACE, p)
    end
    local v = redis.call('GET', KEYS[2])
    if v then keep(KEYS[2], lower(v, 1, da, db, struct.unpack('<d', p), 0, 0)) end
  end
else
  local permits = struct.unpack('<d', amount)
  if permits > 0 then
    if type(a) == 'number' then write(key, a, b, c, now, ttl, p) end
    local v = redis.call('GET', KEYS[2])
    if v then
      keep(KEYS[2], change(v, 1, function(m, l, units) return m, l, math.max(0, units - permits) end))
    end
  end
end
return struct.pack('<Bd', 65, now) .. amount
