-- Takes back a take of a moment ago. ARGV: parameters, tag, the mark it left.
local key, p, tag = KEYS[1], ARGV[1], ARGV[2]
local s1, s2 = read(key, now, tag, p)
if not s1 then return 'N' end
local c, a, b = struct.unpack('<ddd', p)
local m, l = struct.unpack('<dd', ARGV[3])
local da, db, x, y = give_back(s1, s2, now, c, a, b, m, l)
if da + db > 0 then
  if x <= now and y == 0 then
    redis.call('DEL', key)
  else
    write(key, x, y, nil, now, tag, life(x, y, nil, now) + GRACE, p)
  end
end
return 'A'
