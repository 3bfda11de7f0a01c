-- Takes back a take of a moment ago. KEYS: state, ledger. ARGV: parameters, the mark it left.
local key, p = KEYS[1], ARGV[1]
local s1, s2 = read(key, now, p)
local c, a, b = struct.unpack('<ddd', p)
local m, l = struct.unpack('<dd', ARGV[2])
local da, db, x, y = give_back(s1, s2, now, c, a, b, m, l)
if da + db > 0 then
  if x <= now and y == 0 then
    redis.call('DEL', key)
  else
    write(key, x, y, nil, now, life(x, y, nil, now) + GRACE, p)
  end
  local v = redis.call('GET', KEYS[2])
  if v then
    -- Claims that begin where this take ended can give back less. A fraction counts as a whole
    -- microsecond: those of quotas that come with a call are of another kind.
    local less = db > 0 and da + 1 or da
    keep(KEYS[2], change(v, 1, function(at, n, units)
      if at > m or (at == m and n > l) then at = math.max(at - less, 0) end
      return at, n, units
    end))
  end
end
return 'A'
