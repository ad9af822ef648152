-- Takes a waiting pod. Arguments: 'shape' or 'pool', its name, the new state, the ticket, the
-- offer, validity in milliseconds. The answer is the pod.
local at = KEYS[1]
local set = at .. ':' .. ARGV[1] .. ':' .. ARGV[2]
for _, name in ipairs(redis.call('SMEMBERS', set)) do
  local pod = at .. ':pod:' .. name
  local is = redis.call('HMGET', pod, 'state', 'attempt', 'pool', 'gpus', 'shape')
  redis.call('SREM', set, name)
  if is[1] == 'waiting' and (ARGV[1] == 'pool' and is[3] or is[5]) == ARGV[2] then
    redis.call('SREM', at .. ':shape:' .. is[5], name)
    redis.call('SREM', at .. ':pool:' .. is[3], name)
    redis.call('HSET', pod, 'state', ARGV[3], 'ticket', ARGV[4], 'offer', ARGV[5])
    redis.call('PEXPIRE', pod, ARGV[6])
    return {name, is[2], is[3], is[4]}
  end
end
return {}
