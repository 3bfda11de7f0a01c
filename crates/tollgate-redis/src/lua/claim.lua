-- Takes a reservation from its shelf, if it has as many demands as there are costs.
local v = redis.call('GET', KEYS[1])
if not v or struct.unpack('<d', v) <= now then return false end
if string.byte(v, 10) ~= tonumber(ARGV[1]) then return string.byte(v, 10) end
redis.call('DEL', KEYS[1])
return v
