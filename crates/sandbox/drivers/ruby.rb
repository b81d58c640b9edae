# Runs the code on descriptor 5 and writes the value of its last expression to descriptor 4 as JSON.
source = IO.for_fd(5, "r:UTF-8").read
$0 = "main.rb"
$stdout.sync = true
plain = lambda do |value, depth|
  case value
  when nil, true, false, Integer, String then true
  when Float then value.finite?
  when Array then depth < 64 && value.all? { |inner| plain.(inner, depth + 1) }
  when Hash
    depth < 64 && value.all? { |key, inner| (String === key || Symbol === key) && plain.(inner, depth + 1) }
  else false
  end
end
value = TOPLEVEL_BINDING.eval(source, "main.rb", 1)
# Only what JSON can say: other objects would become their names.
if !value.nil? && plain.(value, 0)
  require "json"
  begin
    IO.for_fd(4, "wb").write(JSON.generate(value))
  rescue JSON::GeneratorError, Encoding::UndefinedConversionError
  end
end
