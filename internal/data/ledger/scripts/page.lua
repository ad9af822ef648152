-- Lists runs, the newest first. The arguments are the least sum, before (ms), its id,
-- since (ms), the limit, the recipe or '' for all, and then the states. The answer is the number
-- of runs in these lists, of any time, and then ids, each with the run's value, and with its making
-- if the making contains the run.
local before, id, since, limit, recipe = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
if not whole(ARGV[3]) then return {'behind'} end
local states = {}
for i = 9, #ARGV do states[ARGV[i]] = true end

local shifts = shape.list
local found, floor = {}, since
local gone = false -- whether a key was not found that another one names

local function newer(a, b)
  if a[1] ~= b[1] then return a[1] > b[1] end
  return a[2] > b[2]
end

-- trim keeps the newest runs, as many as the limit. The search then ignores runs that are
-- older than the last of them. trim makes a new table, because some servers still sort
-- elements that were removed from the end of a table.
local function trim()
  table.sort(found, newer)
  local kept = {}
  for i = 1, math.min(#found, limit) do kept[i] = found[i] end
  found = kept
  if #found == limit then floor = math.max(floor, found[limit][1]) end
end

local function leaf(key, most)
  local offset, taken = 0, 0
  while taken < most do
    local some = redis.call('ZREVRANGEBYSCORE', key, text(before), text(floor), 'WITHSCORES', 'LIMIT', offset, limit)
    for i = 1, #some, 2 do
      local score = tonumber(some[i + 1])
      if taken < most and (score < before or some[i] < id) then
        found[#found + 1] = {score, some[i]}
        taken = taken + 1
      end
    end
    if #some < 2 * limit then break end
    offset = offset + limit
  end
  return taken
end

local function walk(base, key, level, most)
  gone = gone or redis.call('EXISTS', key) == 0
  if level == 0 then return leaf(key, most) end
  local shift, taken, top = shifts[level], 0, digit(before, shifts[level])
  local upper = top
  while taken < most do
    local some = redis.call('ZREVRANGEBYSCORE', key, upper, digit(floor, shift), 'LIMIT', 0, 8)
    for _, child in ipairs(some) do
      if taken >= most then break end
      taken = taken + walk(base, base .. ':' .. shift .. ':' .. child, level - 1, most - taken)
    end
    if #some < 8 then break end
    upper = '(' .. some[8]
  end
  return taken
end

local counts, total = redis.call('HGETALL', P .. 'counts'), 0
for i = 1, #counts, 2 do
  local of, state = string.match(counts[i], '^([^/]*)/(%a+)$')
  if state ~= 'keys' and (recipe == '' or of == recipe) and (not next(states) or states[state]) then
    local base = P .. 'list:' .. of .. ':' .. state
    walk(base, base, #shifts, limit)
    trim()
    total = total + tonumber(counts[i + 1])
  end
end
trim()

if gone then
  lost()
  return {'behind'}
end
local answer, ids = {'ok', text(total)}, {}
for i, f in ipairs(found) do ids[i] = f[2] end
local values = fetch(P .. 'runs', ids)
for i, f in ipairs(found) do
  local n, value = #answer, values[i] or ''
  answer[n + 1], answer[n + 2], answer[n + 3] = f[2], value, ''
  local member = string.match(value, '^%S+ %S+ %S+ ([^{].*)$')
  if member then answer[n + 3] = redis.call('HGET', P .. 'makings', member) or '' end
end
return answer
