-- Links lead from causes to effects. The hash links has a field for each cause. Its value
-- is the effects, the newest last, with a space before and after each. Changes are
-- collected here and written at the end.
local mostLinks = 256
local bonds, bonded = {}, {}

local function bond(from)
  local b = bonds[from]
  if not b then
    b = {adds = {}, rems = {}}
    bonds[from] = b
    bonded[#bonded + 1] = from
  end
  return b
end

local function linked(from, to)
  local adds = bond(from).adds
  adds[#adds + 1] = to
end

local function unlinked(from, to)
  local rems = bond(from).rems
  rems[#rems + 1] = to
end

-- each calls f with the words of a list that are not in another list. A comma follows
-- each word.
local function each(list, other, f, to)
  local from = 1
  if other then other = ',' .. other end
  while true do
    local comma = string.find(list, ',', from, true)
    if not comma then return end
    local word = string.sub(list, from, comma - 1)
    if word ~= '' and not (other and string.find(other, ',' .. word .. ',', 1, true)) then f(word, to) end
    from = comma + 1
  end
end

-- few makes a few changes in the text of a list.
local function few(tos, b)
  for _, to in ipairs(b.rems) do
    local first, last = string.find(tos, ' ' .. to .. ' ', 1, true)
    if first then tos = string.sub(tos, 1, first) .. string.sub(tos, last + 1) end
  end
  for _, to in ipairs(b.adds) do
    if not string.find(tos, ' ' .. to .. ' ', 1, true) then tos = tos .. to .. ' ' end
  end
  return tos
end

-- many splits the list, makes the changes, and keeps the newest words.
local function many(tos, b)
  local over, kept, from = {}, {}, 2
  for _, to in ipairs(b.rems) do over[to] = true end
  local function keep(to)
    if not over[to] then
      over[to] = true
      kept[#kept + 1] = to
    end
  end
  while from <= #tos do
    local space = string.find(tos, ' ', from, true)
    keep(string.sub(tos, from, space - 1))
    from = space + 1
  end
  for i = math.max(1, #b.adds - mostLinks + 1), #b.adds do keep(b.adds[i]) end
  if #kept == 0 then return ' ' end
  return ' ' .. table.concat(kept, ' ', math.max(1, #kept - mostLinks + 1)) .. ' '
end

-- bound makes the changes and limits the list. A text that is short enough for few cannot
-- have more than mostLinks words afterwards.
local function bound(tos, b)
  if #b.adds + #b.rems <= 4 and #tos < 2 * mostLinks then return few(tos, b) end
  return many(tos, b)
end

local function links()
  local old, set, gone = fetch(P .. 'links', bonded), {}, {}
  for i, from in ipairs(bonded) do
    local tos = bound(old[i] or ' ', bonds[from])
    if tos == ' ' then
      gone[#gone + 1] = from
    elseif tos ~= old[i] then
      local n = #set
      set[n + 1], set[n + 2] = from, tos
    end
  end
  call('HSET', P .. 'links', set)
  call('HDEL', P .. 'links', gone)
end
