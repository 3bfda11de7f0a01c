-- As much as is free. ARGV: parameters, time to live.
local key, p, ttl = KEYS[1], ARGV[1], ARGV[2]
local s1, s2, s3 = read(key, now, p)
local granted, a, b, c = up_to(s1, s2, s3, now, p, key)
if granted > 0 then write(key, a, b, c, now, ttl, p) end
return struct.pack('<Bdd', granted > 0 and 65 or 68, now, granted) .. show(a, b, c)
