-- Gives back within the window of the mark. KEYS: state, ledger. ARGV: parameters, tag, id, time to live,
-- what was reserved.
local key, ledger, p, tag, ttl = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[4]
local v, _, mark, _, units = close(ledger, ARGV[3])
if not v then return 'N' end
keep(ledger, v)
local s1, s2, s3 = read(key, now, tag, p)
if not s1 then return 'N' end
-- In proportion: of what others have given back meanwhile nobody knows whose it was.
local most = math.floor(units * struct.unpack('<d', p, 17) / ARGV[5])
give_back_to(key, s1, s2, s3, mark, most, ttl)
return 'A'
