-- Runs the code on descriptor 5 and writes what it returns to descriptor 4 as JSON: exact, or text with the type.
local file = assert(io.open("/proc/self/fd/5", "rb"))
local source = file:read("a") or file:read("*a")
file:close()
local given = arg
local has_arguments = given and given[0] == "main.lua"
arg = { [0] = "main.lua" }
for index = 1, has_arguments and #given or 0 do arg[index] = given[index] end
io.stdout:setvbuf("line")
local chunk, reason = (loadstring or load)(source:gsub("^#[^\n]*", ""), "@main.lua")
if not chunk then
  io.stderr:write("lua: ", reason, "\n")
  os.exit(1)
end
local function string_of(value)
  return '"' .. value:gsub('[%c"\\\127]', function(letter)
    return string.format("\\u%04x", letter:byte())
  end) .. '"'
end
local function is_utf8(value)
  local rest = value:gsub("[\194-\223][\128-\191]", " "):gsub("\224[\160-\191][\128-\191]", " ")
  rest = rest:gsub("\237[\128-\159][\128-\191]", " "):gsub("[\225-\239][\128-\191][\128-\191]", function(letters)
    return letters:byte() ~= 237 and " " or nil
  end)
  rest = rest:gsub("\240[\144-\191][\128-\191][\128-\191]", " "):gsub("\244[\128-\143][\128-\191][\128-\191]", " ")
  return not rest:gsub("[\241-\243][\128-\191][\128-\191][\128-\191]", " "):find("[\128-\255]")
end
-- A value as Lua writes it; deeper levels of tables are marks.
local function text_of(value, depth)
  if type(value) == "string" then
    return (string.format("%q", value):gsub("[\128-\255]", function(letter) return "\\" .. letter:byte() end))
  end
  if type(value) ~= "table" or (getmetatable(value) or {}).__tostring then return tostring(value) end
  if depth > 8 then return "{...}" end
  local parts = {}
  for key, inner in pairs(value) do
    if #parts == 10000 then
      parts[#parts + 1] = "..."
      break
    end
    local name = type(key) == "string" and key:find("^[%a_][%w_]*$") and key or "[" .. text_of(key, depth + 1) .. "]"
    parts[#parts + 1] = name .. " = " .. text_of(inner, depth + 1)
  end
  table.sort(parts)
  return "{" .. table.concat(parts, ", ") .. "}"
end
local function typed(value)
  local done, text = pcall(text_of, value, 0)
  return '{"type":"' .. type(value) .. '","text":' .. string_of(done and text or "its text failed") .. "}"
end
local open, left = {}, 1000000
local function json(value, depth)
  local kind = type(value)
  if kind == "nil" then return "null" end
  if kind == "boolean" then return tostring(value) end
  if kind == "number" then
    if value ~= value or value == math.huge or value == -math.huge then return typed(value) end
    if math.type and math.type(value) == "integer" then return string.format("%d", value) end
    if value == math.floor(value) and math.abs(value) < 2 ^ 53 then return string.format("%.0f", value) end
    return string.format("%.17g", value)
  end
  if kind == "string" then return is_utf8(value) and string_of(value) or typed(value) end
  if kind ~= "table" or depth >= 64 or open[value] then return typed(value) end
  local count, names = 0, 0
  for key in pairs(value) do
    count = count + 1
    if type(key) == "string" and is_utf8(key) then names = names + 1 end
  end
  left = left - count - 1
  if left < 0 or (count ~= #value and count ~= names) then return typed(value) end
  open[value] = true
  local parts = {}
  if count == #value then
    for index = 1, count do parts[index] = json(value[index], depth + 1) end
  else
    for key, inner in pairs(value) do parts[#parts + 1] = string_of(key) .. ":" .. json(inner, depth + 1) end
    table.sort(parts)
  end
  open[value] = nil
  local text = table.concat(parts, ",")
  return count == #value and "[" .. text .. "]" or "{" .. text .. "}"
end
local fine, value = xpcall(function() return chunk((table.unpack or unpack)(arg)) end, function(message)
  if type(message) ~= "string" then return message end
  return debug.traceback(message, 2)
end)
if not fine then
  io.stderr:write("lua: ", tostring(value), "\n")
  os.exit(1)
end
if value ~= nil then
  local done, text = pcall(json, value, 0)
  -- Lua opens no descriptor by its number.
  local target = done and io.popen("cat >&4", "w")
  if target then
    target:write(text)
    target:close()
  end
end
-- Else the interpreter would take the first of them for the name of its script.
if has_arguments then os.exit(0, true) end
