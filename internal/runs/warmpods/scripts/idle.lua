-- Counts waiting pods. Arguments: the names of pools. The answer has, for each pool, the number of
-- waiting pods and the GPU-milliseconds spent waiting.
local at = KEYS[1]
local all = {}
for _, pool in ipairs(ARGV) do
  local pods = 0
  for _, name in ipairs(redis.call('SMEMBERS', at .. ':pool:' .. pool)) do
    local is = redis.call('HMGET', at .. ':pod:' .. name, 'state', 'pool')
    if is[1] == 'waiting' and is[2] == pool then pods = pods + 1 end
  end
  all[#all + 1] = tostring(pods)
  all[#all + 1] = redis.call('HGET', at .. ':idle', pool) or '0'
end
return all
