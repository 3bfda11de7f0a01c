-- Replaces a state by another, if nobody has changed it meanwhile. ARGV: old, new ('' for none), ttl.
-- Of a log: ARGV[4..] are the entries, and old is its head, length and last entry.
local key, old, new, ttl = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local is_log = redis.call('TYPE', key)['ok'] == 'list'
local seen
if is_log then
  seen = redis.call('LINDEX', key, 0) .. struct.pack('<d', redis.call('LLEN', key)) .. redis.call('LINDEX', key, -1)
else
  seen = redis.call('GET', key)
end
if seen ~= old then return 0 end
redis.call('DEL', key)
if KEYS[2] then redis.call('DEL', KEYS[2]) end
if #ARGV > 3 then
  for i = 4, #ARGV do redis.call('RPUSH', key, ARGV[i]) end
  redis.call('PEXPIRE', key, ttl)
elseif new ~= '' then
  redis.call('SET', key, new, 'PX', ttl)
end
return 1
