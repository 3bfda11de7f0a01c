-- Gives back within the window of the mark. ARGV: parameters, tag, time to live, mark.
local key, p, tag, ttl = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local mark = struct.unpack('<d', ARGV[4])
local s1, s2, s3 = read(key, now, tag, p)
if not s1 then return 'N' end
local _, _, cost = struct.unpack('<ddd', p)
if type(s1) == 'table' then
  give_back(key, s1, mark, cost)
elseif s3 then
  local amount, left = give_back(s1, s3, mark, cost)
  if amount > 0 then write(key, s1, s2, left, now, tag, ttl, p) end
else
  local amount, left = give_back(s1, s2, mark, cost)
  if amount > 0 then write(key, s1, left, nil, now, tag, ttl, p) end
end
return 'A'
