-- Deletes everything and begins another filling, if Redis still has the filling that the caller
-- has found to be wrong. The arguments are the id of that filling, empty if there is none, then the
-- id of the new filling and the number of partitions.
if (redis.call('HGET', P .. 'at', 'fill') or '') ~= fill then return 0 end
local pattern = string.gsub(P, '[%*%?%[%]\\]', '\\%0')
local keys = redis.call('KEYS', pattern .. '*')
for i = 1, #keys do redis.call('DEL', keys[i]) end
redis.call('HSET', P .. 'at', 'fill', ARGV[3], 'partitions', ARGV[4])
seal()
return 1
