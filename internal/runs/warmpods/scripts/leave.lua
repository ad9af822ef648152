-- A pod stops waiting. Arguments: entry, attempt, GPU-milliseconds waited since the last call,
-- pool. The answer is its offer if it has one, or 'taken' if it is taken.
local at, name = KEYS[1], ARGV[1]
local pod = at .. ':pod:' .. name
if tonumber(ARGV[3]) > 0 then redis.call('HINCRBY', at .. ':idle', ARGV[4], ARGV[3]) end
local is = redis.call('HMGET', pod, 'state', 'attempt', 'offer', 'shape')
if is[2] ~= ARGV[2] then return {} end
if is[1] == 'offered' then return {is[3]} end
if is[1] == 'taken' then return {'taken'} end
if is[1] == 'begun' then return {} end
redis.call('DEL', pod)
redis.call('SREM', at .. ':shape:' .. is[4], name)
redis.call('SREM', at .. ':pool:' .. ARGV[4], name)
return {}
