-- Gives back up to the cost of the parameters of a claim. KEYS: state, ledger. ARGV: parameters, tag, id.
local key, ledger, p, tag, id = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local v = redis.call('GET', ledger)
if not v then return 'N' end
local from
for at = 1, #v, 24 do
  if string.sub(v, at, at + 7) == id then from = at break end
end
if not from then return 'N' end
local m, l = struct.unpack('<dd', v, from + 8)
v = string.sub(v, 1, from - 1) .. string.sub(v, from + 24)
local s1, s2 = read(key, now, tag, p)
-- Under another quota the claim means nothing any more.
if not s1 then keep(ledger, v) return 'N' end
local c, a, b = struct.unpack('<ddd', p)
local da, db, x, y = give_back(s1, s2, now, c, a, b, m, l)
if da + db > 0 then
  if x <= now and y == 0 then
    redis.call('DEL', key)
  else
    write(key, x, y, nil, now, tag, life(x, y, nil, now) + GRACE, p)
  end
  v = lower(v, from, da, db, c)
end
keep(ledger, v)
return 'A'
