-- Gives back within the window of the mark. KEYS: state, ledger. ARGV: parameters, id, time to live,
-- what was reserved.
local key, ledger, p, ttl = KEYS[1], KEYS[2], ARGV[1], ARGV[3]
local v, _, mark, _, units = close(redis.call('GET', ledger) or '', ARGV[2])
if not v then return 'N' end
keep(ledger, v)
local s1, s2, s3 = read(key, now, p)
-- In proportion: of what others have given back meanwhile nobody knows whose it was.
local most = math.floor(units * struct.unpack('<d', p, 17) / ARGV[4])
give_back_to(key, s1, s2, s3, mark, most, ttl, p)
return 'A'
