-- Products that are larger than doubles hold.
-- a x b - c x d for two products below 2^96, given that the difference is small.
local function products(a, b, c, d)
  local A, B, C, D = a % 16777216, b % 16777216, c % 16777216, d % 16777216
  a, b, c, d = (a - A) / 16777216, (b - B) / 16777216, (c - C) / 16777216, (d - D) / 16777216
  return ((a * b - c * d) * 16777216 + (a * B + A * b - c * D - C * d)) * 16777216 + (A * B - C * D)
end
-- floor(a x b / c), exactly.
local function share(a, b, c)
  local product = a * b
  local quotient = math.floor(product / c)
  if product < 9007199254740992 then return quotient end
  while products(a, b, quotient, c) < 0 do quotient = quotient - 1 end
  while products(a, b, quotient + 1, c) >= 0 do quotient = quotient + 1 end
  return quotient
end
