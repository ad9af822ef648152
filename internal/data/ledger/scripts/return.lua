-- Gives back a claim. The arguments are recipe/key, and then pool, recipe, run of the claim.
local member, claim = ARGV[3], redis.call('HGET', KEYS[2], ARGV[3])
local _, pool, recipe, run, started = claimOf(claim or '')
if pool ~= ARGV[4] or recipe ~= ARGV[5] or run ~= ARGV[6] or started ~= '' then return 0 end
redis.call('HDEL', KEYS[2], member)
-- The claim may be from before a filling of Redis. This filling has the claim's end as the time of the run.
fill = redis.call('HGET', P .. 'at', 'fill')
if not fill or not intact() then return 1 end
giveBack(member, claim)
settle()
total()
seal()
return 1
