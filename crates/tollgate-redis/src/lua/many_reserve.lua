-- KEYS: the states, as many ledgers, the record. ARGV goes on with: what the record starts with, its
-- life in ms, the id, how many claims a ledger may hold.
local count = (#KEYS - 1) / 2
local at = 3 * count + 2
local stale = decide(count)
if stale then return stale end
if passed then
  local ms = tonumber(ARGV[at + 1])
  for i = 1, count do
    if string.sub(ARGV[1], i, i) == 'g' or string.sub(ARGV[1], i, i) == 't' then
      -- Nothing is written yet but claims, and those without a take are void.
      if not open(KEYS[count + i], ARGV[at + 2], shown[i], ms + GRACE, ARGV[at + 3], now) then
        return 'F'
      end
    end
  end
  local marks = {}
  for i = 1, count do
    -- Of a log, when it was entered; of the others, what the state begins with.
    local log = string.sub(ARGV[1], i, i) == 'l'
    marks[i] = log and string.sub(shown[i], 25, 32) or string.sub(shown[i], 1, 8)
  end
  local record = struct.pack('<d', now + ms * 1000) .. ARGV[at] .. table.concat(marks)
  redis.call('SET', KEYS[2 * count + 1], record, 'PX', ms + GRACE)
end
commit()
return answer()
