-- Makes the changes that follow from some facts, if no other process has applied facts
-- to their partitions and Redis has forgotten none. Otherwise it changes nothing and
-- returns the next offsets of the partitions, or 'lost' if this is another filling of Redis.
-- The arguments are sections. Each is the number of its rows, and then the rows.
local a = 3

-- section returns the indexes of the first and the last value of the next section.
local function section(width)
  local first = a + 1
  a = first + tonumber(ARGV[a]) * width
  return first, a - 1
end

-- column returns every width-th value of a section: one column of its rows.
local function column(first, last, width)
  local all, n = {}, 0
  for i = first, last, width do
    n = n + 1
    all[n] = ARGV[i]
  end
  return all
end

-- advance reads rows of partition, expected offset, next offset, last fact. The last fact may be
-- empty.
local function advance()
  local first, last = section(4)
  local at, n = fetch(P .. 'at', column(first, last, 4)), 0
  local moved, sum, stale = {}, 0, false
  for i = first, last, 4 do
    n = n + 1
    at[n] = at[n] or '0'
    stale = stale or at[n] ~= ARGV[i + 1]
    local m = #moved
    moved[m + 1], moved[m + 2] = ARGV[i], ARGV[i + 2]
    if ARGV[i + 3] ~= '' then moved[m + 3], moved[m + 4] = 'last:' .. ARGV[i], ARGV[i + 3] end
    sum = sum + tonumber(ARGV[i + 2]) - tonumber(ARGV[i + 1])
  end
  if stale then return at end
  call('HSET', P .. 'at', moved)
  redis.call('HINCRBY', P .. 'at', 'sum', text(sum))
  return nil
end

-- measure records the number of members of a key that lists does not have.
local function measure(name, n)
  if n > 0 then
    redis.call('HSET', P .. 'lengths', name, n)
  else
    redis.call('HDEL', P .. 'lengths', name)
  end
end

-- fields writes fields unchanged. It reads the number of hashes, then the name of each and
-- its rows of field, value. An empty value deletes the field.
local function fields()
  local n = tonumber(ARGV[a])
  a = a + 1
  for _ = 1, n do
    local key = P .. ARGV[a]
    a = a + 1
    local first, last = section(2)
    local set, gone, name = {}, {}, string.match(key, '%l*entries:%d+$')
    local size = name and redis.call('HLEN', key)
    if name and size ~= tonumber(redis.call('HGET', P .. 'lengths', name) or '0') then lost() end
    for i = first, last, 2 do
      if ARGV[i + 1] ~= '' then
        local m = #set
        set[m + 1], set[m + 2] = ARGV[i], ARGV[i + 1]
      else
        gone[#gone + 1] = ARGV[i]
      end
    end
    call('HSET', key, set)
    call('HDEL', key, gone)
    if name then
      local now = redis.call('HLEN', key)
      if now ~= size then measure(name, now) end
    end
  end
end

local ended = {succeeded = true, failed = true, cancelled = true}

-- listed returns the list of a recipe's runs in a state, with the growth of its count.
local lists = {}
local function listed(recipe, state)
  local states = lists[recipe]
  if not states then
    states = {}
    lists[recipe] = states
  end
  local list = states[state]
  if not list then
    list = {base = P .. 'list:' .. recipe .. ':' .. state, name = recipe .. '/' .. state, n = 0}
    list.above = {{P .. 'lists', recipe .. ':' .. state, 0}}
    states[state] = list
  end
  return list
end

-- relink removes a run's links from its old origins, and adds links from its new ones.
local function relink(id, was, now)
  if was == now then return end
  if was then each(was, now, unlinked, id) end
  if now then each(now, was, linked, id) end
end

-- runs reads rows of id, recipe, value. An empty value deletes the run.
local function runs()
  local first, last = section(3)
  local old, n = fetch(P .. 'runs', column(first, last, 3)), 0
  local set, gone, told = {}, {}, {}
  for i = first, last, 3 do
    n = n + 1
    local id, recipe, value = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    local was, wasState, wasOf, now, state, of
    if old[n] then was, wasState, wasOf = three(old[n]) end
    if value ~= '' then
      now, state, of = three(value)
      set[#set + 1] = id
      set[#set + 1] = value
    else
      gone[#gone + 1] = id
    end
    if was ~= now or wasState ~= state then
      if was then
        local list = listed(recipe, wasState)
        take('list', list.base, was, id, list.above)
        list.n = list.n - 1
      end
      if now then
        local list = listed(recipe, state)
        put('list', list.base, now, id, list.above)
        list.n = list.n + 1
      end
    end
    relink(id, wasOf, of)
    if old[n] and (not state or ended[state]) then told[#told + 1] = id end
  end
  for _, states in pairs(lists) do
    for _, list in pairs(states) do count(P .. 'counts', list.name, list.n) end
  end
  call('HSET', P .. 'runs', set)
  call('HDEL', P .. 'runs', gone)
  call('HDEL', P .. 'told', told)
end

-- running adds n to the counts of attempts under way, and returns the attempt's number.
local function running(value, n)
  local attempt, pool, recipe = string.match(value, '^(%d+) (%S*) ([^/]*)/')
  if attempt == '0' then return nil end
  count(P .. 'running', pool, n)
  count(P .. 'running', pool .. '/' .. recipe, n)
  count(P .. 'running', '/' .. recipe, n)
  return attempt
end

-- live reads rows of id, value. An empty value means that the run need not be watched.
local function live()
  local first, last = section(2)
  local old, n = fetch(P .. 'live', column(first, last, 2)), 0
  local set, gone, beats = {}, {}, {}
  for i = first, last, 2 do
    n = n + 1
    local id, value, was, now = ARGV[i], ARGV[i + 1]
    if old[n] then was = running(old[n], -1) end
    if value ~= '' then
      now = running(value, 1)
      set[#set + 1] = id
      set[#set + 1] = value
    else
      gone[#gone + 1] = id
    end
    if was and was ~= now then beats[#beats + 1] = id .. '-' .. was end
  end
  call('HSET', P .. 'live', set)
  call('HDEL', P .. 'live', gone)
  call('HDEL', P .. 'beats', beats)
end

-- heldTill returns the end of the claim if it is for this run. It ends the claim of the run that was
-- pending before, in this layout: another layout may not have applied the run's start yet, and counts
-- the claim until it has, for two seconds at most. A claim of another run is left alone: a process that
-- has applied more facts, with another layout, has made it.
local function heldTill(member, claim, was, run)
  if not claim then return nil end
  local till, pool, recipe, of, started = claimOf(claim)
  if of == run and started == '' then return till end
  if of == run or of ~= was then return nil end
  if started ~= '' then
    redis.call('HDEL', KEYS[2], member)
  else
    till = math.min(tonumber(till), tonumber(redis.call('TIME')[1]) * 1000 + 2000)
    redis.call('HSET', KEYS[2], member, text(till) .. ' ' .. pool .. ' ' .. recipe .. ' ' .. of .. '/' .. P)
  end
  return nil
end

-- pending reads rows of recipe/key, recipe, value. An empty value means that no run may
-- begin.
local function pending()
  local first, last = section(3)
  local members = column(first, last, 3)
  local old, claimed, n = fetch(P .. 'pending', members), fetch(KEYS[2], members), 0
  local set, gone = {}, {}
  for i = first, last, 3 do
    n = n + 1
    local member, recipe, value = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    if old[n] then
      local prio, score = two(old[n])
      dequeue(recipe, prio, score, member)
    end
    local prio, due, run
    if value ~= '' then
      prio, due = two(value)
      run = string.sub(value, #prio + #due + 3)
    end
    local till = heldTill(member, claimed[n], old[n] and string.match(old[n], '%S+$'), run)
    if run then
      local score = due
      if till and tonumber(till) > tonumber(due) then score = till end
      enqueue(recipe, prio, score, member)
      set[#set + 1] = member
      set[#set + 1] = prio .. ' ' .. score .. ' ' .. due .. ' ' .. run
    else
      gone[#gone + 1] = member
    end
  end
  call('HSET', P .. 'pending', set)
  call('HDEL', P .. 'pending', gone)
end

-- keys reads rows of recipe, key, '1' or ''. With '' the key is not the recipe's any more.
local function keys()
  local first, last = section(3)
  local by = {}
  for i = first, last, 3 do
    local of = by[ARGV[i]] or {come = {}, gone = {}}
    by[ARGV[i]] = of
    local all = of.gone
    if ARGV[i + 2] ~= '' then all = of.come end
    all[#all + 1] = ARGV[i + 1]
  end
  for recipe, of in pairs(by) do
    if redis.call('SCARD', P .. 'keys:' .. recipe) ~= tonumber(redis.call('HGET', P .. 'counts', recipe .. '/keys') or '0') then lost() end
    call('SADD', P .. 'keys:' .. recipe, of.come)
    call('SREM', P .. 'keys:' .. recipe, of.gone)
    count(P .. 'counts', recipe .. '/keys', #of.come - #of.gone)
  end
end

-- made reads rows of run, version, '1' or ''. With '' the version is not kept any more.
local function made()
  local first, last = section(3)
  for i = first, last, 3 do
    if ARGV[i + 2] ~= '' then linked(ARGV[i], ARGV[i + 1]) else unlinked(ARGV[i], ARGV[i + 1]) end
  end
end

if not intact() then return {'lost'} end
local at = advance()
if at then return at end
fields()
runs()
live()
pending()
keys()
made()
links()
settle()
total()
seal()
return {}
