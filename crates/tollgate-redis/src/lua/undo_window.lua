-- Takes back a take of a moment ago. ARGV: parameters, the mark it left, time to live.
local p = ARGV[1]
local s1, s2, s3 = read(KEYS[1], now, p)
local mark, cost = struct.unpack('<d', ARGV[2]), struct.unpack('<d', p, 17)
give_back_to(KEYS[1], s1, s2, s3, mark, cost, ARGV[3], p)
return 'A'
