-- Looks at the queues. The arguments are the least sum and now. The answer is the number
-- of due runs by recipe, and the first due time after now.
local now = tonumber(ARGV[4])
if not whole(ARGV[3]) then return {'behind'} end

local shifts = shape.queue
local soonest
local gone = false -- whether a key was not found that another one names

-- after finds the first score greater than now in a node. The child whose range contains
-- now may have none, so up to two children are searched.
local function after(base, key, level)
  gone = gone or redis.call('EXISTS', key) == 0
  if level == 0 then
    return tonumber(redis.call('ZRANGEBYSCORE', key, '(' .. text(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
  end
  local shift = shifts[level]
  for _, child in ipairs(redis.call('ZRANGEBYSCORE', key, digit(now, shift), '+inf', 'LIMIT', 0, 2)) do
    if soonest and tonumber(child) * 2 ^ shift >= soonest then return nil end
    local found = after(base, base .. ':' .. shift .. ':' .. child, level - 1)
    if found then return found end
  end
  return nil
end

-- begun counts the due runs in the node whose range contains now.
local function begun(base)
  local n, upper = 0, node(base, shifts[2], now)
  for _, child in ipairs(redis.call('ZRANGEBYSCORE', upper, '-inf', digit(now, shifts[1]))) do
    local some = redis.call('ZCOUNT', base .. ':' .. shifts[1] .. ':' .. child, '-inf', text(now))
    gone = gone or some == 0 and redis.call('EXISTS', base .. ':' .. shifts[1] .. ':' .. child) == 0
    n = n + some
  end
  return n
end

local due, here = {}, digit(now, shifts[2])
local sums = redis.call('HGETALL', P .. 'queued')
for i = 1, #sums, 2 do
  local recipe, d = string.match(sums[i], '^(%S+) (%S+)$')
  if tonumber(d) < tonumber(here) then due[recipe] = (due[recipe] or 0) + tonumber(sums[i + 1]) end
end
for _, recipe in ipairs(redis.call('ZRANGE', P .. 'queue', 0, -1)) do
  local prios = redis.call('ZRANGE', P .. 'queue:' .. recipe, 0, -1)
  gone = gone or #prios == 0
  for _, prio in ipairs(prios) do
    local base = P .. 'queue:' .. recipe .. ':' .. prio
    due[recipe] = (due[recipe] or 0) + begun(base)
    local found = after(base, base, #shifts)
    if found and not (soonest and soonest <= found) then soonest = found end
  end
end

if gone then
  lost()
  return {'behind'}
end
local answer = {'ok', soonest and text(soonest) or ''}
for recipe, n in pairs(due) do answer[#answer + 1], answer[#answer + 2] = recipe, text(n) end
return answer
