-- How many processes are alive.
-- KEYS[1]  sorted set: process -> the microsecond at which it counts no more
-- ARGV     process, life in microseconds, verb (beat or leave), the most processes
-- Returns how many there are now, or -1 if there is no room for another.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local life = tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
-- Who ends so late was counted before the clock went back. Lives may differ while settings are rolled
-- out, but not by that much.
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now + 10 * life, '+inf')) do
  redis.call('ZADD', KEYS[1], now + life, name)
end
if ARGV[3] == 'leave' then
  redis.call('ZREM', KEYS[1], ARGV[1])
  return redis.call('ZCARD', KEYS[1])
end
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[4])
  and not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  return -1
end
redis.call('ZADD', KEYS[1], now + life, ARGV[1])
-- Lives may differ while settings are rolled out: the set lives as long as the longest.
local ttl = math.ceil(life / 1000) + 1
if redis.call('PTTL', KEYS[1]) < ttl then redis.call('PEXPIRE', KEYS[1], ttl) end
return redis.call('ZCARD', KEYS[1])
