-- An ordered set of many members, made of small sorted sets. The laptop's Redis sorts a
-- whole sorted set to find its first member, so a small set is faster. A node's members
-- are the numbers of its children. A number is a score without its lowest bits. The key of
-- the root is the base. The caller chooses the nodes above the root.
local P = ARGV[1]

local shape = {
  queue = {6, 14, 22}, -- due times in ms: leaves of 64 ms
  list = {16, 26},     -- times of asking in ms: leaves of about a minute
}

local function text(n) return string.format('%.0f', n) end

-- digit returns the text of a score without its lowest bits. It caches the last text,
-- because most calls have the same number. (In the laptop's Redis a table with numbers as
-- keys is an array as long as the greatest number, so there is only one text per shift.)
local lastN, lastDigit = {}, {}
local function digit(score, shift)
  local n = math.floor(score / 2 ^ shift)
  if lastN[shift] ~= n then
    lastN[shift], lastDigit[shift] = n, text(n)
  end
  return lastDigit[shift]
end

local function node(base, shift, score) return base .. ':' .. shift .. ':' .. digit(score, shift) end

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

-- two returns the first two words of a text. It uses no pattern, because the laptop's
-- Redis compiles patterns at each call.
local function two(value)
  local first = string.find(value, ' ', 1, true)
  local second = string.find(value, ' ', first + 1, true)
  return string.sub(value, 1, first - 1), string.sub(value, first + 1, second - 1)
end

local function three(value)
  local first = string.find(value, ' ', 1, true)
  local second = string.find(value, ' ', first + 1, true)
  local third = string.find(value, ' ', second + 1, true)
  return string.sub(value, 1, first - 1), string.sub(value, first + 1, second - 1), string.sub(value, second + 1, third - 1)
end

-- whole reports whether Redis has caught up and has all facts that the caller knows of.
local function whole(known)
  local at = redis.call('HMGET', P .. 'at', 'sum', 'ready')
  return at[2] and tonumber(at[1] or '0') >= tonumber(known)
end
