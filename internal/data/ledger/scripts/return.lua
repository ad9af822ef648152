-- Gives back a claim. The arguments are recipe/key, pool, recipe, run.
local member, claim = ARGV[2], ARGV[3] .. ' ' .. ARGV[4] .. ' ' .. ARGV[5]
if redis.call('HGET', P .. 'claimed', member) ~= claim then return 0 end
giveBack(member, claim)
settle()
total()
return 1
