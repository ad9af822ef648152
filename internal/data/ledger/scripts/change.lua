-- Changes of ordered sets are collected by leaf and made at the end, because most of the
-- thousands of changes of a batch are in the same leaves. The parameter score is a number,
-- and written is its text.
local bases = {}

local function leaf(kind, base, score, above)
  local leaves = bases[base]
  if not leaves then
    leaves = {}
    bases[base] = leaves
  end
  local n = digit(score, shape[kind][1])
  local l = leaves[n]
  if not l then
    l = {kind = kind, base = base, score = score, above = above, adds = {}, rems = {}}
    leaves[n] = l
  end
  return l
end

local function put(kind, base, written, member, above)
  local adds = leaf(kind, base, tonumber(written), above).adds
  local n = #adds
  adds[n + 1], adds[n + 2] = written, member
end

local function take(kind, base, written, member, above)
  local rems = leaf(kind, base, tonumber(written), above).rems
  rems[#rems + 1] = member
end

-- path returns the nodes above a leaf as {key, member, score}, the lowest first.
local function path(l)
  local shifts, all = shape[l.kind], {}
  for i, shift in ipairs(shifts) do
    local d = digit(l.score, shift)
    local up = shifts[i + 1]
    all[i] = {up and node(l.base, up, l.score) or l.base, d, d}
  end
  for _, a in ipairs(l.above or {}) do all[#all + 1] = a end
  return all
end

-- link adds a leaf to the nodes above it. A node exists exactly if the node above it names it;
-- otherwise Redis has lost one of the two. was says whether the leaf existed before.
local function link(l, was)
  for _, p in ipairs(path(l)) do
    local above = redis.call('EXISTS', p[1]) == 1
    local named = redis.call('ZADD', p[1], p[3], p[2]) == 0
    if named ~= was then lost() end
    if named then return end
    was = above
  end
end

local function unlink(l)
  for _, p in ipairs(path(l)) do
    if redis.call('ZREM', p[1], p[2]) == 0 then lost() end
    if redis.call('EXISTS', p[1]) == 1 then return end
  end
end

local function settle()
  for base, leaves in pairs(bases) do
    for _, l in pairs(leaves) do
      local key = node(base, shape[l.kind][1], l.score)
      local was = redis.call('EXISTS', key) == 1
      if #l.rems > 0 then
        if not was then lost() end
        call('ZREM', key, l.rems)
      end
      if #l.adds > 0 then
        call('ZADD', key, l.adds)
        link(l, was)
      elseif redis.call('EXISTS', key) == 0 then
        unlink(l)
      end
    end
  end
  bases = {}
end

-- Changes of counts are added up here and written once.
local sums = {}

local function count(key, field, n)
  local of = sums[key] or {}
  sums[key] = of
  of[field] = (of[field] or 0) + n
end

local function total()
  for key, of in pairs(sums) do
    for field, n in pairs(of) do
      if n ~= 0 and redis.call('HINCRBY', key, field, n) == 0 then redis.call('HDEL', key, field) end
    end
  end
  sums = {}
end

-- The queue: runs that may begin, by recipe, then priority, then due time.
local function queued(recipe, prio)
  local base = P .. 'queue:' .. recipe .. ':' .. prio
  return base, {{P .. 'queue:' .. recipe, prio, -prio}, {P .. 'queue', recipe, 0}}
end

local function enqueue(recipe, prio, score, member)
  local base, above = queued(recipe, prio)
  put('queue', base, score, member, above)
  count(P .. 'queued', recipe .. ' ' .. digit(tonumber(score), 14), 1)
end

local function dequeue(recipe, prio, score, member)
  local base, above = queued(recipe, prio)
  take('queue', base, score, member, above)
  count(P .. 'queued', recipe .. ' ' .. digit(tonumber(score), 14), -1)
end

-- Claims are taken slots whose runs have not started yet. The hash KEYS[2] has
-- recipe/key → <end ms> <pool> <recipe> <run>. It is outside the layout, so that processes of two
-- layouts count the same claims during an upgrade. If it is lost, a pool may start a run too many.
-- A layout that has applied the run's start puts /<layout's prefix> after the run, and counts the claim no more.
local function claimOf(value)
  local till, pool, recipe, run = string.match(value, '^(%S+) (%S*) (%S*) (%S+)$')
  if run then return till, pool, recipe, string.match(run, '^([^/]+)/?(.*)$') end
end

-- postpone makes a run due at another time, in its queue only.
local function postpone(member, recipe, at)
  local prio, score, due, run = string.match(redis.call('HGET', P .. 'pending', member), '^(%S+) (%S+) (%S+) (%S+)$')
  dequeue(recipe, prio, score, member)
  enqueue(recipe, prio, at or due, member)
  redis.call('HSET', P .. 'pending', member, prio .. ' ' .. (at or due) .. ' ' .. due .. ' ' .. run)
  return run
end

-- giveBack ends a claim whose run was not started. The run is due at the given time; without one, at its old time.
local function giveBack(member, claim, at)
  redis.call('HDEL', KEYS[2], member)
  local pending = redis.call('HGET', P .. 'pending', member)
  local _, _, recipe, run = claimOf(claim)
  if pending and string.match(pending, '%S+$') == run then postpone(member, recipe, at) end
end
