-- One demand. ARGV: parameters, tag, time to live ('0': only look).
local key, p, tag, ttl = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local s1, s2, s3, healed = read(key, now, tag, p)
if not s1 then return 'S\1' .. s2 end
local ok, a, b, c = judge(s1, s2, s3, now, p, key)
if ttl ~= '0' then
  if ok then
    write(key, a, b, c, now, tag, ttl, p)
  elseif healed then
    write(key, a, b, c, now, tag, math.max(ttl, math.ceil((a - now) / 1000) + GRACE + 2), p)
  end
end
return struct.pack('<Bd', ok and 65 or 68, now) .. show(a, b, c)
