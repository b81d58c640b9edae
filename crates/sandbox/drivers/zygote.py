# Loads modules once and makes children that wait for code, each in a sandbox of its own. Descriptor 4 is the socket to
# the host, descriptor 5 a file with what the host computed: a Python literal. A child carries the host's recipe out call
# by call, makes the process that will run the code, and becomes the first process of the sandbox.
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
    while os.dup(null) < 16:
        pass
    channel = _socket.socket(fileno=os.dup(4))
    driver = compile(config["driver"], "<string>", "exec")
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

    def number(value):
        return ctypes.c_long(value)

    class Patched:
        # A structure in which a descriptor stands that is known only in the child.
        def __init__(self, content, at, register):
            self.buffer, self.at, self.register = ctypes.create_string_buffer(content, len(content)), at, register

    keep = []

    def argument(kind, *rest):
        if kind == "n":
            return number(rest[0])
        if kind == "b":
            keep.append(ctypes.create_string_buffer(rest[0], len(rest[0])))
            return keep[-1]
        if kind == "f":
            # The kernel's struct sock_fprog.
            keep.append(ctypes.create_string_buffer(rest[0], len(rest[0])))
            pointer = ctypes.addressof(keep[-1]).to_bytes(8, order)
            header = (len(rest[0]) // 8).to_bytes(2, order) + bytes(6) + pointer
            keep.append(ctypes.create_string_buffer(header, 16))
            return keep[-1]
        if kind == "p":
            return Patched(*rest)
        return (kind, rest[0])

    calls = []
    for step, name, arguments, register in config["calls"]:
        made = [argument(*entry) for entry in arguments]
        plain = not any(isinstance(entry, (tuple, Patched)) for entry in made)
        calls.append((step, name, tuple(made), register, plain))

    def message(*numbers):
        return b"".join(entry.to_bytes(8, order) for entry in (numbers + (0,) * 6)[:6])

    def rights(descriptors):
        data = b"".join(entry.to_bytes(4, order) for entry in descriptors)
        return [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, data)]

    def receive(source, most):
        data, ancillary, _, _ = source.recvmsg(65536, _socket.CMSG_SPACE(most * 4), _socket.MSG_CMSG_CLOEXEC)
        found = []
        for level, kind, content in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                found += [int.from_bytes(content[at : at + 4], order) for at in range(0, len(content) // 4 * 4, 4)]
        return data, found

    program = receive(channel, 1)[1][0]

    def confine(host, joins):
        registers = [0] * 16
        for step, name, arguments, register, plain in calls:
            if plain:
                result = syscall(name, *arguments)
            elif name == -1:
                folder = os.open(arguments[0][1], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                host.sendmsg([message(ord("W"))], rights([folder]))
                continue
            elif name == -2:
                if not host.recv(1):
                    os._exit(0)
                continue
            else:
                values = []
                for entry in arguments:
                    if isinstance(entry, Patched):
                        descriptor = registers[entry.register].to_bytes(4, order)
                        ctypes.memmove(ctypes.byref(entry.buffer, entry.at), descriptor, 4)
                        entry = entry.buffer
                    elif isinstance(entry, tuple):
                        entry = number(registers[entry[1]] if entry[0] == "r" else joins[entry[1]])
                    values.append(entry)
                result = syscall(name, *values)
            if result < 0:
                host.send(message(ord("E"), step, ctypes.get_errno()))
                os._exit(1)
            if register is not None:
                registers[register] = result

    def first_process(descriptors):
        # In the child: becomes the first process of the sandbox, and gives true in the one that will run code.
        socket, waiting, *joins = descriptors
        host = _socket.socket(fileno=os.dup(socket))
        try:
            confine(host, joins)
            for source, target in ((null, 0), (null, 1), (null, 2), (socket, 3), (null, 4), (waiting, 5), (program, 6)):
                os.dup2(source, target)
            if syscall(config["close_range"], number(7), number(0x7FFFFFFF), number(0)) < 0:
                # This kernel closes one at a time.
                os.closerange(7, max(int(name) for name in os.listdir("/proc/self/fd")) + 1)
            host.detach()
            child = os.fork()
        except BaseException as error:
            host.send(message(ord("E"), 1 << 20, getattr(error, "errno", None) or 71))
            os._exit(1)
        if child == 0:
            os.close(3)
            os.close(6)
            return
        for other in (0, 1, 2, 4, 5, 6):
            os.set_inheritable(other, False)
        os.execve(6, ["a", str(child)], {})

    def serve():
        pidfd = ctypes.c_int(-1)
        while True:
            data, descriptors = receive(channel, 8)
            if not data:
                os._exit(0)
            flags = number(config["flags"])
            child = syscall(config["clone"], flags, number(0), ctypes.byref(pidfd), number(0), number(0))
            if child == 0:
                return first_process(descriptors)
            if child < 0:
                channel.send(b"N" + data[1:9] + ctypes.get_errno().to_bytes(4, order))
            else:
                channel.sendmsg([b"C" + data[1:9]], rights([pidfd.value]))
                os.close(pidfd.value)
            for descriptor in descriptors:
                os.close(descriptor)

    gc.collect()
    gc.freeze()
    serve()

    # From here on in a child of a child, in its sandbox.
    host = _socket.socket(fileno=5)
    numpy_random = sys.modules.get("numpy.random")

    def reseed():
        # What is equal in all children of a zygote must not be the source of their numbers.
        if "random" in sys.modules:
            sys.modules["random"].seed()
        if numpy_random is not None:
            numpy_random.seed()

    def stream(at, mode, name, like):
        binary = open(at, mode + "b", closefd=False)
        binary.raw.name = name
        text = io.TextIOWrapper(binary, like.encoding, like.errors, "\n")
        text.mode = mode
        return text

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
                folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
                rule = ctypes.create_string_buffer(rest[:8] + folder.to_bytes(4, order), 12)
                if libc.syscall(long(445), long(rules), long(1), rule, long(0)) < 0:
                    raise OSError(ctypes.get_errno(), "")
                os.close(folder)
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
    # The streams learn now what kind of file they have: pipes, as the run's.
    for end in os.pipe():
        os.dup2(end, 1)
        os.dup2(end, 2)
        os.close(end)
    sys.stdout = sys.__stdout__ = stream(1, "w", "<stdout>", sys.stdout)
    sys.stderr = sys.__stderr__ = stream(2, "w", "<stderr>", sys.stderr)
    known = set(sys.modules)
    known.discard("__main__")
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
        limit = soft.to_bytes(8, order) + (soft + 1).to_bytes(8, order)
        syscall(config["prlimit"], number(0), number(0), ctypes.create_string_buffer(limit, 16), number(0))

    status = 0
    try:
        exec(driver, {"__name__": "__main__", "__builtins__": __builtins__})
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
    for name in [name for name in sys.modules if name not in known]:
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
