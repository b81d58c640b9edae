# Runs the code on descriptor 5 and writes the value of its last expression to descriptor 4 as JSON: exact, or the text of
# `inspect` with the class.
source = IO.for_fd(5, "r:UTF-8").read
$0 = "main.rb"
$stdout.sync = true
value = TOPLEVEL_BINDING.eval(source, "main.rb", 1)
unless NilClass === value
  require "json"
  utf8 = lambda { |text| text.encode("UTF-8", invalid: :replace, undef: :replace).scrub }
  typed = lambda do |inner, text = nil|
    kind = Kernel.instance_method(:class).bind_call(inner).name.to_s
    begin
      text ||= inner.inspect
    rescue StandardError, SystemStackError => error
      text = "#<#{kind}; its inspect raised #{error.class}>"
    end
    JSON.generate({ type: utf8.(kind), text: utf8.(text) })
  end
  string = lambda do |inner|
    text = inner.encode("UTF-8")
    text.valid_encoding? ? JSON.generate(text) : nil
  rescue EncodingError
    nil
  end
  open, left = {}.compare_by_identity, 1_000_000
  json = lambda do |inner, depth|
    case inner
    when nil, true, false, Integer then next inner.to_s.then { |text| text.empty? ? "null" : text }
    when Float then next inner.finite? ? inner.to_s : typed.(inner)
    when String then next string.(inner) || typed.(inner)
    when Array, Hash then nil
    else next typed.(inner)
    end
    left -= 1 + inner.size
    next typed.(inner, "more than a million values") if left < 0
    next typed.(inner) if depth >= 64 || open[inner]
    open[inner] = true
    text = if Array === inner
      "[#{inner.map { |item| json.(item, depth + 1) }.join(",")}]"
    else
      names = inner.keys.map { |key| String === key || Symbol === key ? string.(key.to_s) : nil }
      next typed.(inner) if names.include?(nil) || names.uniq.size < names.size
      "{#{names.zip(inner.values).map { |name, item| "#{name}:#{json.(item, depth + 1)}" }.join(",")}}"
    end
    open.delete(inner)
    text
  end
  IO.for_fd(4, "wb").write(json.(value, 0))
end
