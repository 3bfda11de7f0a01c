-- What is in flight: a set of permits by the time at which each ends. A permit of cost n has n members.
-- ARGV: verb, id, cost, life in us, limit.
local key, verb, id = KEYS[1], ARGV[1], ARGV[2]
local cost, span = tonumber(ARGV[3]), tonumber(ARGV[4])
local function member(i)
  return i == 1 and id or id .. '#' .. i
end
local function put()
  for i = 1, cost do redis.call('ZADD', key, now + span, member(i)) end
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  if last[2] then redis.call('PEXPIRE', key, math.ceil((last[2] - now) / 1000) + GRACE + 1) end
end
-- Who holds nothing keeps it, and gives it back.
if verb ~= 'enter' and cost == 0 then return { 1, 0, 0 } end
if verb ~= 'enter' then
  local ends = redis.call('ZSCORE', key, id)
  if not ends or tonumber(ends) <= now then return { 0, 0, 0 } end
  if verb == 'renew' then
    put()
  else
    for i = 1, cost do redis.call('ZREM', key, member(i)) end
  end
  return { 1, 0, 0 }
end
local limit = tonumber(ARGV[5])
local gone = redis.call('ZCOUNT', key, '-inf', now)
local held = redis.call('ZCARD', key) - gone
if held + cost > limit then
  local needed = held + cost - limit
  local last = {}
  if needed <= held then
    last = redis.call('ZRANGE', key, gone + needed - 1, gone + needed - 1, 'WITHSCORES')
  end
  return { 0, held, last[2] and last[2] - now or -1 }
end
if gone > 0 then redis.call('ZREMRANGEBYSCORE', key, '-inf', now) end
put()
return { 1, held + cost, 0 }
