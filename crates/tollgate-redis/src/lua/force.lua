-- Into debt: all of it or nothing, or partly, as far as it goes. ARGV: parameters, time to live.
local key, p, ttl = KEYS[1], ARGV[1], ARGV[2]
local s1, s2, s3 = read(key, now, p)
local ok, a, b, c = charge(s1, s2, s3, now, p, partly)
if ok and ttl ~= '0' then
  if life then ttl = life(a, b, c, now) + GRACE end
  write(key, a, b, c, now, ttl, p)
end
return struct.pack('<Bd', ok and 65 or 68, now) .. show(a, b, c)
