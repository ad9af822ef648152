-- A pod is given an offer. Arguments: entry, attempt, ticket, offer, validity in milliseconds, the
-- offered attempt. The answer is empty if another taker has the pod or has given it an offer, or
-- the pod has done another attempt since.
local at, name = KEYS[1], ARGV[1]
local pod = at .. ':pod:' .. name
local is = redis.call('HMGET', pod, 'state', 'attempt', 'ticket', 'offer', 'shape', 'pool')
if is[2] and is[2] ~= ARGV[2] then return {} end
if is[1] == 'begun' then return {} end
if is[1] == 'taken' and is[3] ~= ARGV[3] then return {} end
if is[1] == 'offered' and is[4] ~= ARGV[4] then return {} end
if is[1] == 'waiting' then
  redis.call('SREM', at .. ':shape:' .. is[5], name)
  redis.call('SREM', at .. ':pool:' .. is[6], name)
end
redis.call('HSET', pod, 'state', 'offered', 'attempt', ARGV[2], 'offer', ARGV[4], 'next', ARGV[6])
redis.call('PEXPIRE', pod, ARGV[5])
if ARGV[6] ~= '' then redis.call('SET', at .. ':given:' .. ARGV[6], name, 'PX', ARGV[5]) end
return {'given'}
