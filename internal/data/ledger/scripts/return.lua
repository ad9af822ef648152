-- Gives back a claim. The arguments are recipe/key, then pool, recipe, run of the claim, and the time at which the run is
-- due again. Without this time, it is due as before the claim.
local member, claim = ARGV[3], redis.call('HGET', KEYS[2], ARGV[3])
local _, pool, recipe, run, started = claimOf(claim or '')
if pool ~= ARGV[4] or recipe ~= ARGV[5] or run ~= ARGV[6] or started ~= '' then return 0 end
redis.call('HDEL', KEYS[2], member)
-- The claim may be from before a filling of Redis. This filling has the claim's end as the time of the run.
fill = redis.call('HGET', P .. 'at', 'fill')
if not fill or not intact() then return 1 end
giveBack(member, claim, ARGV[7] ~= '' and ARGV[7])
settle()
total()
seal()
return 1
