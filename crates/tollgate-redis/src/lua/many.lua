-- Several demands: all are charged, or none. ARGV: a letter each; then of each parameters and time to live
-- ('0': only look).
local seen, flags, shown, passed = {}, {}, {}, true
local function decide(count)
  for i = 1, count do
    local key, m, j = KEYS[i], M[string.byte(ARGV[1], i)], 2 * i
    local s = seen[key]
    if not s then
      local a, b, c, healed = m.read(key, now, ARGV[j])
      s = { a, b, c, healed = healed and { a, b, c } }
      seen[key] = s
    end
    local ok, a, b, c = m.judge(s[1], s[2], s[3], now, ARGV[j], key)
    if ok then
      s[1], s[2], s[3] = a, b, c
    else
      passed = false
    end
    flags[i], shown[i] = ok and 'A' or 'D', m.show(a, b, c)
    if ARGV[j + 1] ~= '0' then s.m, s.j = m, j end
  end
end
local function commit()
  for key, s in pairs(seen) do
    local m, j, h = s.m, s.j, s.healed
    if m and passed then
      m.write(key, s[1], s[2], s[3], now, ARGV[j + 1], ARGV[j])
    elseif m and h then
      local ttl = math.max(ARGV[j + 1], math.ceil((h[1] - now) / 1000) + GRACE + 2)
      m.write(key, h[1], h[2], h[3], now, ttl, ARGV[j])
    end
  end
end
local function answer()
  return table.concat(flags) .. struct.pack('<d', now) .. table.concat(shown)
end
