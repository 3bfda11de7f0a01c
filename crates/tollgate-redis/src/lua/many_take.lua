decide(#KEYS)
commit()
return answer()
