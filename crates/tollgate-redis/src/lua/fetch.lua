-- A state as it is, with the time.
local value
if redis.call('TYPE', KEYS[1])['ok'] == 'list' then
  value = redis.call('LRANGE', KEYS[1], 0, -1)
else
  value = redis.call('GET', KEYS[1])
end
return { struct.pack('<d', now), value or false }
