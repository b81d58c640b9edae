# Loads modules once and makes children that wait for code, each in a sandbox of its own. Descriptor 4 is the socket to
# the host, descriptor 5 a file with what the host computed: a Python literal. The host's code that makes the children
# (`shim/fork.rs`) is loaded and called; it comes back in each child, in its sandbox.
def _zygote():
    import _socket, ctypes, gc, io, linecache, os, sys, traceback
    import _ast, atexit, json, threading

    with open(5, "rb") as file:
        config = eval(file.read())
    libc = ctypes.PyDLL(None, use_errno=True)
    syscall, order = libc.syscall, sys.byteorder
    syscall.restype = ctypes.c_long
    # What the host hands over must not take a place of the child's.
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    while null < 16:
        null = os.dup(null)
    channel = _socket.socket(fileno=os.dup(4))
    driver, compiled = compile(config["driver"], "<string>", "exec"), {}
    warm_up = config["warm_up"] and compile(config["warm_up"], "<warm-up>", "exec")

    def threads():
        return len(os.listdir("/proc/self/task"))

    loaded, missing, threaded = [], [], []
    for name in config["preload"]:
        try:
            __import__(name)
        except BaseException as error:
            missing.append((name, f"{type(error).__name__}: {error}"[:300]))
            continue
        if threads() > 1:
            threaded.append(name)
            break
        loaded.append(name)
    for name in config["environment"]:
        os.environ.pop(name, None)
    hello = {"loaded": loaded, "missing": missing[:100], "threaded": threaded}
    channel.send(json.dumps(hello).encode())
    if threaded:
        # A copy of a process with threads would miss them: the host starts again without this one.
        os._exit(0)

    def rights(content):
        return [int.from_bytes(content[at : at + 4], order) for at in range(0, len(content) // 4 * 4, 4)]

    def receive(source, most):
        data, ancillary, _, _ = source.recvmsg(65536, _socket.CMSG_SPACE(most * 4), _socket.MSG_CMSG_CLOEXEC)
        found = []
        for level, kind, content in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                found += rights(content)
        return data, found

    program, fork = receive(channel, 2)[1]
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t) + (ctypes.c_int,) * 3 + (ctypes.c_long,)

    def memory(size, access, flags, file):
        at = libc.mmap(None, size, access, flags, file, 0)
        if at == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")
        return at

    def sequences():
        # Where the libc has its restartable sequences, if it has any.
        try:
            if ctypes.c_uint.in_dll(libc, "__rseq_size").value:
                return ctypes.c_ssize_t.in_dll(libc, "__rseq_offset").value
        except ValueError:
            pass
        return 0

    def enlarge():
        # Memory in pieces of 2 MiB is copied into a child with one entry of a table, and not with 512. A kernel that
        # cannot do so leaves it as it is.
        piece, collapse = 1 << 21, 25
        with open("/proc/self/maps") as file:
            lines = [line.split() for line in file]
        for place, access, *_, name in [entry if len(entry) > 5 else entry + [""] for entry in lines]:
            if access == "rw-p" and name in ("", "[heap]"):
                start, end = (int(number, 16) for number in place.split("-"))
                for at in range(-(-start // piece) * piece, end - piece + 1, piece):
                    syscall(config["madvise"], ctypes.c_long(at), ctypes.c_long(piece), ctypes.c_long(collapse))

    # `Order` of `shim/fork.rs`: readable and executable code, a readable and writable stack, both private.
    stack = 1 << 18
    calls = ctypes.create_string_buffer(config["calls"], len(config["calls"]))
    code = memory(config["size"], 5, 2, fork)
    top = memory(stack, 3, 0x22, -1) + stack
    libc_fork = ctypes.cast(libc.fork, ctypes.c_void_p).value
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    fields = (0, config["flags"], top, channel.fileno(), program, null, ctypes.addressof(calls), config["count"])
    fields += (libc_fork, sequences(), highest + 16) + (0,) * 5
    task = (ctypes.c_ssize_t * len(fields))(*fields)
    serve = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(code + config["entry"])

    def stream(at, mode, name, like):
        binary = open(at, mode + "b", closefd=False)
        binary.raw.name = name
        text = io.TextIOWrapper(binary, like.encoding, like.errors, "\n")
        text.mode = mode
        return text

    def own_streams():
        # A stream learns when it is made what kind of file it has: pipes, as the run's.
        kept = [os.dup(1), os.dup(2)]
        for end in os.pipe():
            os.dup2(end, 1)
            os.dup2(end, 2)
            os.close(end)
        made = stream(1, "w", "<stdout>", sys.stdout), stream(2, "w", "<stderr>", sys.stderr)
        for target, source in enumerate(kept, 1):
            os.dup2(source, target)
            os.close(source)
        return made

    def rehearse():
        # Runs the driver with a line of the host's, so that the pages that every run writes to are copied already.
        kept = sys.argv, list(sys.path), sys.modules["__main__"]
        place, (code, end) = os.dup(5), os.pipe()
        os.write(end, b"print(1)\n1")
        os.close(end)
        os.dup2(code, 5)
        os.close(code)
        try:
            exec(driver, {"__name__": "__main__", "__builtins__": __builtins__, "COMPILED": compiled})
            sys.stdout.flush()
        except BaseException:
            # The run copies its pages itself then.
            pass
        sys.argv, sys.path[:], sys.modules["__main__"] = kept
        os.dup2(place, 5, False)
        os.close(place)

    def swap(pair):
        before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = pair
        return before

    streams = own_streams()
    # What the interpreter remembers of code that ran often is the same in all children, and none has to write it.
    os.dup2(null, 4)
    os.dup2(null, 5)
    before = swap(streams)
    for _ in range(20):
        rehearse()
    swap(before)
    # What the code loads comes later, and is emptied at its end.
    known = set(sys.modules)
    known.discard("__main__")
    gc.collect()
    gc.freeze()
    enlarge()
    ctypes.pythonapi.PyOS_BeforeFork()
    if not serve(ctypes.addressof(task)):
        os._exit(0)
    ctypes.pythonapi.PyOS_AfterFork_Child()

    # From here on in a child of a child, in its sandbox.
    host = _socket.socket(fileno=5)
    numpy_random = sys.modules.get("numpy.random")

    def reseed():
        # What is equal in all children of a zygote must not be the source of their numbers.
        if "random" in sys.modules:
            sys.modules["random"].seed()
        if numpy_random is not None:
            numpy_random.seed()

    def lock(content):
        # The workspace is what it will be: Landlock is put in force as in a cold run. The system calls have the same
        # numbers everywhere.
        long = ctypes.c_long
        try:
            os.chdir("/workspace")
            head, rest = ctypes.create_string_buffer(content[:24], 24), content[24:]
            rules = libc.syscall(long(444), head, long(24), long(0))
            while rest and rules >= 0:
                path, _, after = rest[8:].partition(b"\0")
                directory = os.open(path, os.O_PATH | os.O_CLOEXEC)
                rule = ctypes.create_string_buffer(rest[:8] + directory.to_bytes(4, order), 12)
                if libc.syscall(long(445), long(rules), long(1), rule, long(0)) < 0:
                    raise OSError(ctypes.get_errno(), "")
                os.close(directory)
                rest = after
            if rules < 0 or libc.syscall(long(446), long(rules), long(0)) < 0:
                raise OSError(ctypes.get_errno(), "")
            os.close(rules)
            return b"K"
        except OSError as error:
            return b"E" + error.errno.to_bytes(4, order)

    reseed()
    if warm_up:
        try:
            exec(warm_up, {"__name__": "__warm_up__", "__builtins__": __builtins__})
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException as error:
            host.send(b"B" + f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:300])
            os._exit(1)
        reseed()
        known.update(sys.modules)
        known.discard("__main__")
    sys.stdout = sys.__stdout__ = streams[0]
    sys.stderr = sys.__stderr__ = streams[1]
    rehearse()
    loaded = len(sys.modules), next(reversed(sys.modules))
    gc.collect()
    gc.freeze()
    host.send(b"R" + round(sum(os.times()[:2]) * 1e6).to_bytes(8, order))
    data, descriptors = receive(host, 6)
    if data[:1] == b"L":
        host.send(lock(data[1:]))
        data, descriptors = receive(host, 6)
    if not data:
        os._exit(0)
    # The code's first descriptor, if it opens any, has the number that it has in a cold start.
    host.close()
    for target, source in enumerate(descriptors[:3] + descriptors[3:5]):
        os.dup2(source, target if target < 3 else target + 1)
    sys.stdin = sys.__stdin__ = stream(0, "r", "<stdin>", sys.stdin)
    variables = None
    if len(descriptors) > 5:
        with open(descriptors[5], "rb", closefd=False) as file:
            variables = file.read().split(b"\0")[:-1]
    for descriptor in descriptors:
        os.close(descriptor)
    if variables is not None:
        os.environb.clear()
        for entry in variables:
            name, _, content = entry.partition(b"=")
            os.environb[name] = content
    if data[1:]:
        os.chdir(data[1:])
    if config["cpu"]:
        soft = int(sum(os.times()[:2]) + config["cpu"]) + 1
        none = ctypes.c_long(0)
        limit = soft.to_bytes(8, order) + (soft + 1).to_bytes(8, order)
        syscall(config["prlimit"], none, none, ctypes.create_string_buffer(limit, 16), none)

    status = 0
    try:
        exec(driver, {"__name__": "__main__", "__builtins__": __builtins__, "COMPILED": compiled})
    except SystemExit as error:
        status = error.code
        if status is None:
            status = 0
        elif not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    # What the end of an interpreter does, without taking the whole heap apart, which would copy all of it.
    try:
        threading._shutdown()
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()

    def flush(names):
        failed = False
        for entry in names:
            target = getattr(sys, entry, None)
            if target is None or getattr(target, "closed", False):
                continue
            try:
                target.flush()
            except BaseException as error:
                failed = entry == "stdout" or failed
        return failed

    failed = flush(("stdout", "stderr"))
    # A name that was taken out and put in again stands at the end, and all are looked at.
    same = loaded == (len(sys.modules), next(reversed(sys.modules), None))
    for name in ["__main__"] if same else [name for name in sys.modules if name not in known]:
        module = sys.modules.get(name)
        names = getattr(module, "__dict__", None)
        if names is None or not isinstance(names, dict):
            continue
        for private in (True, False):
            for entry in list(names):
                if entry != "__builtins__" and isinstance(entry, str):
                    if (entry.startswith("_") and not entry.startswith("__")) == private:
                        names[entry] = None
    module = names = target = None
    gc.collect()
    for entry in gc.get_objects():
        # What is still open because a cycle or another module holds it.
        if isinstance(entry, io.BufferedWriter) and not entry.closed:
            try:
                entry.flush()
            except BaseException:
                pass
    failed = flush(("stdout", "stderr")) or failed
    libc.fflush(None)
    os._exit(120 if failed and status == 0 else status & 255)


_zygote()
