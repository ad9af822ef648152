-- Claims a slot for the next run. The arguments are the least sum, now, the claim's end,
-- the pool, the slots, and then recipe, maxRunning, priority of each recipe that may start.
local now, till, pool, slots = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
if not whole(ARGV[3]) then return {'behind'} end

local claims, held = {}, {}
local function hold(field) held[field] = (held[field] or 0) + 1 end
local all = redis.call('HGETALL', KEYS[2])
for i = 1, #all, 2 do
  local ends, of, recipe, _, started = claimOf(all[i + 1])
  if tonumber(ends) <= now then
    giveBack(all[i], all[i + 1])
  elseif started ~= P then
    claims[all[i]] = ends
    hold(of)
    hold(of .. '/' .. recipe)
    hold('/' .. recipe)
  end
end
settle()
total()
seal()

-- Counts of attempts under way or claimed: in the pool, then of each recipe in the pool
-- and in all pools.
local fields, recipes = {pool}, {}
for i = 8, #ARGV, 3 do
  recipes[#recipes + 1] = {name = ARGV[i], max = tonumber(ARGV[i + 1]), priority = tonumber(ARGV[i + 2])}
  fields[#fields + 1] = pool .. '/' .. ARGV[i]
  fields[#fields + 1] = '/' .. ARGV[i]
end
local running = fetch(P .. 'running', fields)
local function busy(i) return tonumber(running[i] or '0') + (held[fields[i]] or 0) end
if slots > 0 and busy(1) >= slots then return {'full'} end

-- gone says that a key was not found that another one names.
local gone = false

-- first returns the earliest run of a priority, if it is due.
local function first(recipe, prio)
  local base = P .. 'queue:' .. recipe .. ':' .. prio
  local key, shifts = base, shape.queue
  for level = #shifts, 1, -1 do
    local child = redis.call('ZRANGE', key, 0, 0)[1]
    if not child then
      gone = true
      return nil
    end
    if tonumber(child) * 2 ^ shifts[level] > now then return nil end
    key = base .. ':' .. shifts[level] .. ':' .. child
  end
  local member = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if not member[1] then
    gone = true
    return nil
  end
  local score = tonumber(member[2])
  if score > now then return nil end
  return member[1], score
end

local best
local function better(c)
  if not best then return true end
  if c.priority ~= best.priority then return c.priority > best.priority end
  if c.busy ~= best.busy then return c.busy < best.busy end
  return c.score < best.score
end

-- choose finds the next run.
local function choose()
  best = nil
  for i, r in ipairs(recipes) do
    if r.max == 0 or busy(2 * i + 1) < r.max then
      local prios = redis.call('ZRANGE', P .. 'queue:' .. r.name, 0, -1)
      gone = gone or #prios == 0 and redis.call('ZSCORE', P .. 'queue', r.name)
      for _, prio in ipairs(prios) do
        local priority = tonumber(prio) + r.priority
        if best and priority < best.priority then break end
        local member, score = first(r.name, prio)
        if member then
          local c = {recipe = r.name, prio = prio, priority = priority, busy = busy(2 * i), member = member, score = score}
          if better(c) then best = c end
          break
        end
      end
    end
  end
  return best
end

choose()
while best and claims[best.member] do -- a process of another layout has claimed it
  postpone(best.member, best.recipe, claims[best.member])
  settle()
  total()
  choose()
end
seal()
if gone then
  lost()
  return {'behind'}
end
if not best then return {'none'} end

-- The run stays in its queue, and is due again when the claim ends.
local member = best.member
local run = postpone(member, best.recipe, text(till))
redis.call('HSET', KEYS[2], member, text(till) .. ' ' .. pool .. ' ' .. best.recipe .. ' ' .. run)
settle()
total()
seal()
return {'claimed', member, run}
