-- The first arguments of every script are the prefix of the keys, and the id of the filling of
-- Redis that the caller knows.
local P, fill = ARGV[1], ARGV[2]

local function text(n) return string.format('%.0f', n) end

-- call runs a command with many arguments, in portions that fit Lua's stack.
local function call(command, key, args)
  local n = #args
  for i = 1, n, 1000 do
    redis.call(command, key, unpack(args, i, math.min(i + 999, n)))
  end
end

-- fetch is HMGET for many fields.
local function fetch(key, fields)
  local all, n = {}, #fields
  for i = 1, n, 1000 do
    local some = redis.call('HMGET', key, unpack(fields, i, math.min(i + 999, n)))
    for j = 1, #some do all[i + j - 1] = some[j] end
  end
  return all
end

-- Redis may lose single keys: a server that evicts, or a person, deletes them. So the field sizes
-- of `at` has the sizes of the keys in lists. Each script compares them first, and updates them
-- last. All other keys are nodes of ordered sets, or their sizes are in a key of lists:
-- those of keys:<recipe> in counts, and those of entries:<partition> and keyentries:<partition> in
-- lengths.
local function sizes()
  local all = {}
  for i, name in ipairs(hashes) do all[i] = redis.call('HLEN', P .. name) end
  for _, name in ipairs(roots) do all[#all + 1] = redis.call('ZCARD', P .. name) end
  return table.concat(all, ' ')
end

local function seal() redis.call('HSET', P .. 'at', 'sizes', sizes()) end

-- lost marks Redis as incomplete. Then nothing is read or applied until all keys are deleted
-- and filled again.
local function lost()
  redis.call('HDEL', P .. 'at', 'ready')
  redis.call('HSET', P .. 'at', 'lost', '1')
end

-- intact reports whether this is the filling that the caller knows, and no key is lost. A flush
-- removes the id of the filling, and each filling begins with another one.
local function intact()
  local at = redis.call('HMGET', P .. 'at', 'fill', 'lost', 'sizes')
  if at[1] ~= fill or at[2] then return false end
  if at[3] == sizes() then return true end
  lost()
  return false
end

-- whole reports whether Redis has caught up and has all facts that the caller knows of.
local function whole(least)
  if not intact() then return false end
  local at = redis.call('HMGET', P .. 'at', 'sum', 'ready')
  return at[2] and tonumber(at[1] or '0') >= tonumber(least)
end
