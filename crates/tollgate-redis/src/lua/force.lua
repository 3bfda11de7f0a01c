-- Into debt: all of it or nothing, or partly, as far as it goes. ARGV: parameters, tag, time to live.
local key, p, tag, ttl = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local s1, s2, s3 = read(key, now, tag, p)
if not s1 then return 'S\1' .. s2 end
local ok, a, b, c = charge(s1, s2, s3, now, p, partly)
if ok and ttl ~= '0' then
  if life then ttl = life(a, b, c, now) + GRACE end
  write(key, a, b, c, now, tag, ttl, p)
end
return struct.pack('<Bd', ok and 65 or 68, now) .. show(a, b, c)
