-- One demand. ARGV: parameters, time to live ('0': only look).
local key, p, ttl = KEYS[1], ARGV[1], ARGV[2]
local s1, s2, s3, healed = read(key, now, p)
local ok, a, b, c = judge(s1, s2, s3, now, p, key)
if ttl ~= '0' then
  if ok then
    write(key, a, b, c, now, ttl, p)
  elseif healed then
    write(key, a, b, c, now, math.max(ttl, math.ceil((a - now) / 1000) + GRACE + 2), p)
  end
end
return struct.pack('<Bd', ok and 65 or 68, now) .. show(a, b, c)
