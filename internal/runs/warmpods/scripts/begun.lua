-- An attempt has reported to a gateway. Arguments: its name, validity in milliseconds. Requests
-- that name the pod's previous attempt no longer get its offer.
local at = KEYS[1]
local given = at .. ':given:' .. ARGV[1]
local name = redis.call('GET', given)
if not name then return {} end
redis.call('DEL', given)
local pod = at .. ':pod:' .. name
local is = redis.call('HMGET', pod, 'state', 'next')
if is[1] == 'offered' and is[2] == ARGV[1] then
  redis.call('HSET', pod, 'state', 'begun', 'offer', '{}')
  redis.call('PEXPIRE', pod, ARGV[2])
end
return {}
