local stale = decide(#KEYS)
if stale then return stale end
commit()
return answer()
