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

-- known reports whether this is the filling that the caller knows. A flush removes the id, and
-- each filling begins with another one.
local function known() return redis.call('HGET', P .. 'at', 'fill') == fill end

-- whole reports whether Redis has caught up and has all facts that the caller knows of.
local function whole(least)
  if not known() then return false end
  local at = redis.call('HMGET', P .. 'at', 'sum', 'ready')
  return at[2] and tonumber(at[1] or '0') >= tonumber(least)
end
