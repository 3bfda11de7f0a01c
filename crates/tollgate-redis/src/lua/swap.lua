-- Replaces a state by another, if nobody has changed it meanwhile. KEYS: state, ledger, mark. ARGV: old,
-- new ('' for none), ttl, which way ('here': the same quota, 'on', 'back'), life of the mark.
-- Of a log: ARGV[6..] are the entries, and old is its head, length and last entry.
local key, old, new, ttl, way = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local is_log = redis.call('TYPE', key)['ok'] == 'list'
local seen
if is_log then
  seen = redis.call('LINDEX', key, 0) .. struct.pack('<d', redis.call('LLEN', key)) .. redis.call('LINDEX', key, -1)
else
  seen = redis.call('GET', key)
end
if seen ~= old then return 0 end
redis.call('DEL', key)
if way ~= 'here' then redis.call('DEL', KEYS[2]) end
if way == 'back' then redis.call('SET', KEYS[3], '1', 'PX', ARGV[5]) end
if #ARGV > 5 then
  for i = 6, #ARGV do redis.call('RPUSH', key, ARGV[i]) end
  redis.call('PEXPIRE', key, ttl)
elseif new ~= '' then
  redis.call('SET', key, new, 'PX', ttl)
end
return 1
