-- KEYS: the states, as many ledgers, the record. ARGV goes on with: the record, its life in ms, the id,
-- how many claims a ledger may hold.
local count = (#KEYS - 1) / 2
local at = 2 * count + 2
decide(count)
if passed then
  local ms = tonumber(ARGV[at + 1])
  for i = 1, count do
    local letter, p = string.sub(ARGV[1], i, i), ARGV[2 * i]
    local is_gcra = letter == 'g'
    local units = is_gcra and 0 or struct.unpack('<d', p, 17)
    local mark = marked(shown[i], p, is_gcra, letter == 'l')
    local id = ARGV[at + 2] .. string.char(i)
    -- A claim on nothing is bounded, too.
    if not open(KEYS[count + i], id, mark, units, ms, ARGV[at + 3], now) then
      -- Nothing is written yet but the claims before this one.
      for k = 1, i - 1 do
        local v = close(redis.call('GET', KEYS[count + k]) or '', ARGV[at + 2] .. string.char(k))
        if v then keep(KEYS[count + k], v) end
      end
      return 'F'
    end
  end
  local record = struct.pack('<d', now + ms * 1000) .. ARGV[at]
  redis.call('SET', KEYS[2 * count + 1], record, 'PX', ms + GRACE)
end
commit()
return answer()
