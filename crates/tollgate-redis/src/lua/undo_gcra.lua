-- Takes back a take of a moment ago. KEYS: state, ledger. ARGV: parameters, the mark it left.
local key, p = KEYS[1], ARGV[1]
local s1, s2, s3 = read(key, now, p)
local c, a, b = struct.unpack('<ddd', p)
local m, l = struct.unpack('<dd', ARGV[2])
l = l * 9000 / c
local da, db, x, y = give_back(s1, s2, now, c, a, b, m, l)
if da + db > 0 then
  if x <= now and y == 0 then
    redis.call('DEL', key)
  else
    write(key, x, y, s3, now, life(x, y, nil, now) + GRACE, p)
  end
  local v = redis.call('GET', KEYS[2])
  -- Claims that begin where this take ended can give back less.
  if v then keep(KEYS[2], lower(v, 1, da, db, c, m, l)) end
end
return 'A'
