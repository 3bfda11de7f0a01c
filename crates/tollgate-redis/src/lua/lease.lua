-- As much as is free, with a claim to give back what is not used. KEYS: state, ledger, record. ARGV:
-- parameters, tag, time to live, the record, its life in ms, id, most claims.
local key, p, tag, ttl = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local s1, s2, s3 = read(key, now, tag, p)
if not s1 then return 'S\1' .. s2 end
local granted, a, b, c = up_to(s1, s2, s3, now, p, key)
local shown = show(a, b, c)
if granted > 0 then
  local ms = tonumber(ARGV[5])
  local mark = marked(shown, life and true, type(a) == 'table')
  if not open(KEYS[2], ARGV[6] .. '\1', mark, granted, ms, ARGV[7], now) then return 'F' end
  write(key, a, b, c, now, tag, ttl, p)
  local record = struct.pack('<d', now + ms * 1000) .. ARGV[4] .. struct.pack('<d', granted)
  redis.call('SET', KEYS[3], record, 'PX', ms + GRACE)
end
return struct.pack('<Bdd', granted > 0 and 65 or 68, now, granted) .. shown
