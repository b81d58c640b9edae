# Runs the code on descriptor 5 as `__main__` and writes the value of its last expression to descriptor 4: see `value.py`.
# No module is imported that the interpreter has not loaded already, unless it is needed: imports cost milliseconds.
def _start():
    import os, sys
    with open(5, "rb") as file:
        source = file.read().decode("utf-8")
    os.set_inheritable(4, False)
    name = "main.py"
    main = type(sys)("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    given = sys.argv[1:]
    packages = given[: given.index("--")] if "--" in given else given
    # Packages that were asked for come before those of the host.
    hosts = [index for index, path in enumerate(sys.path) if path.endswith(("site-packages", "dist-packages"))]
    place = hosts[0] if hosts else len(sys.path)
    sys.path[place:place] = packages
    here = os.getcwd()
    sys.path.append(here)
    # What is compiled of modules in the workspace is not an artifact.
    sys.dont_write_bytecode = True
    sys.argv = [name] + given[len(packages) + 1 :]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")

    made = {}

    def part(name, *arguments):
        # An object of a class that is text above. A zygote has the code already.
        if name not in made:
            known, names = globals().get("COMPILED", {}), {}
            if name not in known:
                known[name] = compile(globals()[name.upper()], "<string>", "exec")
            exec(known[name], names)
            made[name] = names[name](*arguments)
        return made[name]

    def display():
        return part("Display", here, lambda text: print(text, file=sys.stderr))

    def remember(linecache):
        # The lines of the code, also where a file has its name.
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)

    class Watch:
        # Calls a function with a module that has been loaded. Compiles nothing before.
        modules = {
            "linecache": remember,
            "matplotlib.pyplot": lambda pyplot: display().attach(pyplot),
            "threading": lambda threading: setattr(threading, "excepthook", of_thread),
        }

        @staticmethod
        def find_spec(module, path=None, target=None):
            begin = Watch.modules.pop(module, None)
            for finder in sys.meta_path if begin else ():
                spec = finder is not Watch and finder.find_spec(module, path, target)
                load = spec and getattr(spec.loader, "exec_module", None)
                if load:
                    spec.loader.exec_module = lambda loaded: (load(loaded), begin(loaded)) and None
                    return spec

        @staticmethod
        def start():
            # A copy of an interpreter that has run this before has another one.
            others = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") != "Watch"]
            sys.meta_path[:] = [Watch] + others
            for module in [module for module in Watch.modules if module in sys.modules]:
                Watch.modules.pop(module)(sys.modules[module])

    # As the interpreter itself, which would read the lines of a file.

    def show(head, raised):
        import traceback
        print(head, file=sys.stderr)
        traceback.print_exception(raised.exc_type, raised.exc_value, raised.exc_traceback)

    def of_thread(raised):
        if raised.exc_type is not SystemExit:
            show("Exception in thread %s:" % getattr(raised.thread, "name", "?"), raised)

    def unraisable(raised):
        try:
            show("%s: %r" % (raised.err_msg or "Exception ignored in", raised.object), raised)
        except BaseException:
            sys.__unraisablehook__(raised)

    def keep_figures():
        if "matplotlib.pyplot" in sys.modules:
            display().keep_figures()

    def text(value):
        # The most usual values need nothing compiled.
        kind = type(value)
        if kind is bool:
            return b"true" if value else b"false"
        if kind is int and value.bit_length() < 64 or kind is float and value - value == 0:
            return repr(value).encode()
        if kind is str and value.isascii():
            # The same that `json` uses, without importing it.
            from _json import encode_basestring_ascii
            return encode_basestring_ascii(value).encode()
        if kind.__module__ != "builtins":
            display().keep_shown(value)
        return part("Value").describe(value)

    def evaluate(code):
        result = eval(code, main.__dict__)
        if code.co_flags & 0x80:
            import asyncio
            if "loop" not in made:
                made["loop"] = asyncio.new_event_loop()
            result = made["loop"].run_until_complete(result)
        return result

    def run():
        import _ast
        # 0x2000: `await` outside of functions, as in a session.
        tree = compile(source, name, "exec", 0x2400)
        last = None
        if tree.body and isinstance(tree.body[-1], _ast.Expr):
            last = _ast.Expression(tree.body.pop().value)
        evaluate(compile(tree, name, "exec", 0x2000))
        return evaluate(compile(last, name, "eval", 0x2000)) if last else None

    Watch.start()
    sys.unraisablehook = unraisable
    if os.path.exists(name):
        # The interpreter itself would print the lines of that file.
        import warnings
    try:
        value = run()
    except SystemExit as stop:
        if not stop.code:
            keep_figures()
        raise
    except BaseException as error:
        import traceback
        if isinstance(error, SyntaxError) and error.filename == name and error.lineno:
            # The compiler reads the line of a file.
            error.text = "".join(source.splitlines(True)[error.lineno - 1 : error.lineno]) or None
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == "<string>":
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        peer = "socket" in sys.modules and display().peer(error)
        if peer:
            print("no connection to " + peer, file=sys.stderr)
        sys.exit(1)
    data = b""
    if value is not None:
        try:
            data = text(value)
        except Exception as error:
            print("the value was lost: %s" % type(error).__name__, file=sys.stderr)
    keep_figures()
    while data:
        data = data[os.write(4, data):]


_start()
