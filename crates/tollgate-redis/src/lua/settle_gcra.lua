-- Gives back up to the cost of the parameters of a claim. KEYS: state, ledger. ARGV: parameters, id.
local key, ledger, p = KEYS[1], KEYS[2], ARGV[1]
local s1, s2, s3, is_back = read(key, now, p)
local c, a, b = struct.unpack('<ddd', p)
local v = redis.call('GET', ledger) or ''
-- A clock that went back shows less booked than there is.
if not is_back then v = cut(v, s1, s2, c) end
local v, from, m, l = close(v, ARGV[2])
if not v then return 'N' end
local da, db, x, y = give_back(s1, s2, now, c, a, b, m, l)
if da + db > 0 then
  if x <= now and y == 0 then
    redis.call('DEL', key)
  else
    write(key, x, y, s3, now, life(x, y, nil, now) + GRACE, p)
  end
  v = lower(v, from, da, db, c, 0, 0)
end
keep(ledger, v)
return 'A'
