-- Gives back a claim. The arguments are recipe/key, pool, recipe, run.
if not intact() then return 0 end
local member, claim = ARGV[3], ARGV[4] .. ' ' .. ARGV[5] .. ' ' .. ARGV[6]
if redis.call('HGET', P .. 'claimed', member) ~= claim then return 0 end
giveBack(member, claim)
settle()
total()
seal()
return 1
