-- A pod waits. Arguments: entry, attempt, pool, shape, GPUs, milliseconds waited since the last
-- call, validity in milliseconds. The answer is its offer, if it has one.
local at, name, attempt, pool, shape = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local pod = at .. ':pod:' .. name
local counted = tonumber(ARGV[5]) * tonumber(ARGV[6])
if counted > 0 then redis.call('HINCRBY', at .. ':idle', pool, counted) end
local is = redis.call('HMGET', pod, 'state', 'attempt', 'offer')
if is[2] == attempt then
  if is[1] == 'offered' or is[1] == 'begun' then return {is[3]} end
  if is[1] == 'taken' then return {} end -- the entry expires if no offer comes
end
redis.call('DEL', pod)
redis.call('HSET', pod, 'state', 'waiting', 'attempt', attempt, 'pool', pool, 'shape', shape, 'gpus', ARGV[5])
redis.call('PEXPIRE', pod, ARGV[7])
for _, set in ipairs({at .. ':shape:' .. shape, at .. ':pool:' .. pool}) do
  redis.call('SADD', set, name)
  redis.call('PEXPIRE', set, ARGV[7])
end
return {}
