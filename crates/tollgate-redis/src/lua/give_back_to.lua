local function give_back_to(key, s1, s2, s3, mark, most, ttl, p)
  if type(s1) == 'table' then
    give_back(key, s1, mark, most, p)
  elseif s3 then
    s1, s2, s3 = unrolled(s1, s2, s3, now, p)
    local amount, left = give_back(s1, s3, mark, most)
    if amount > 0 then write(key, s1, s2, left, now, ttl, p) end
  else
    local amount, left = give_back(s1, s2, mark, most)
    if amount > 0 then write(key, s1, left, nil, now, ttl) end
  end
end
