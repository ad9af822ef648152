-- Sets ready if all facts up to the given offsets have been applied.
if not intact() then return 0 end
for i = 3, #ARGV, 2 do
  if tonumber(redis.call('HGET', P .. 'at', ARGV[i]) or '0') < tonumber(ARGV[i + 1]) then return 0 end
end
redis.call('HSET', P .. 'at', 'ready', '1')
redis.call('HINCRBY', P .. 'at', 'sum', 0)
return 1
