-- Deletes everything, if Redis still has facts that the log does not have.
local ends, beyond = {}, false
for i = 2, #ARGV, 2 do ends[ARGV[i]] = tonumber(ARGV[i + 1]) end
local at = redis.call('HGETALL', P .. 'at')
for i = 1, #at, 2 do
  if at[i] ~= 'sum' and at[i] ~= 'ready' and tonumber(at[i + 1]) > (ends[at[i]] or 0) then beyond = true end
end
if not beyond then return 0 end
local pattern = string.gsub(P, '[%*%?%[%]\\]', '\\%0')
local keys = redis.call('KEYS', pattern .. '*')
for i = 1, #keys do redis.call('DEL', keys[i]) end
return #keys
