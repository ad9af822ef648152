-- An ordered set of many members, made of small sorted sets. The laptop's Redis sorts a
-- whole sorted set to find its first member, so a small set is faster. A node's members
-- are the numbers of its children. A number is a score without its lowest bits. The key of
-- the root is the base. The caller chooses the nodes above the root.
local shape = {
  queue = {6, 14, 22}, -- due times in ms: leaves of 64 ms
  list = {16, 26},     -- times of asking in ms: leaves of about a minute
}

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
