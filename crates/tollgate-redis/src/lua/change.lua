-- Notes that a policy has another quota from now on. ARGV: the change, how long it matters in ms, and
-- how many bytes of changes are kept.
local v = (redis.call('GET', KEYS[1]) or '') .. struct.pack('<d', now) .. ARGV[1]
if #v > tonumber(ARGV[3]) then v = struct.pack('<d', now) .. ARGV[1] end
redis.call('SET', KEYS[1], v, 'PX', math.max(tonumber(ARGV[2]), redis.call('PTTL', KEYS[1])))
return 1
