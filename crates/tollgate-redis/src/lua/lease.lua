-- As much as is free, with a claim to give back what is not used. KEYS: state, ledger, record. ARGV:
-- parameters, time to live, the record, its life in ms, id, most claims.
local key, p, ttl = KEYS[1], ARGV[1], ARGV[2]
local s1, s2, s3 = read(key, now, p)
local granted, a, b, c = up_to(s1, s2, s3, now, p, key)
local shown = show(a, b, c)
if granted > 0 then
  local ms = tonumber(ARGV[4])
  local mark = marked(shown, p, life and true, type(a) == 'table')
  if not open(KEYS[2], ARGV[5] .. '\1', mark, granted, ms, ARGV[6], now) then return 'F' end
  write(key, a, b, c, now, ttl, p)
  local record = struct.pack('<d', now + ms * 1000) .. ARGV[3] .. struct.pack('<d', granted)
  redis.call('SET', KEYS[3], record, 'PX', ms + GRACE)
end
return struct.pack('<Bdd', granted > 0 and 65 or 68, now, granted) .. shown
