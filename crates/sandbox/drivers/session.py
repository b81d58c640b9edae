# The interpreters of a Python session. The first one runs no code: it is the origin, which makes members by forking.
# A member runs cells, one after another, in one namespace, and can fork itself. Descriptor 4 is a socket of packets to
# the host: a letter, 16 bytes that name the request, and the rest.
def _start():
    import os, sys
    import _ast, _imp, _signal, _socket
    import gc, json, linecache, select, traceback

    CONTROL, LARGEST, HEAD = 4, 60000, 17
    NOBODY = bytes(16)
    SYSTEM_CALLS = {"x86_64": (126, 157, 444, 446, 445), "aarch64": (91, 167, 444, 446, 445)}
    options = json.loads(sys.argv[1])
    write, close, exit, getpid = os.write, os.close, os._exit, os.getpid

    main = type(sys)("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    sys.argv = [""]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")

    names = {}
    for text in (VALUE, DISPLAY):
        exec(compile(text, "<string>", "exec"), names)
    values, display = names["Value"](), names["Display"](options["workspace"], None)

    class State:
        pid = getpid()
        running = False
        forking = False
        interrupted = False
        own = ()
        children = set()
        loop = None
        cells = []
        socket = None
        # The large pages that are still to be made, the size of the memory when all were, and whether some is shared.
        blocks = None
        settled = 0
        shares = False
        rules = None

    # Raw system calls: Python has no name for them.
    try:
        import ctypes
        machine = SYSTEM_CALLS[os.uname().machine]
        library = ctypes.CDLL(None, use_errno=True)
    except Exception:
        ctypes = library = machine = None

    if library is not None:
        # capset, version 3: effective, permitted, inheritable, twice. Inherited by no program.
        bit = 1 << 18
        HEADER = (ctypes.c_uint32 * 2)(0x20080522, 0)
        SETS = {on: (ctypes.c_uint32 * 6)(bit if on else 0, bit, 0, 0, 0, 0) for on in (False, True)}

    def right_to_change_root(effective):
        if library.syscall(machine[0], HEADER, SETS[effective]) != 0:
            raise OSError(ctypes.get_errno(), "capset")

    def lock_files(payload, directories):
        # Landlock's rules for files, as the host computed them, and for the directories that forks will write to, some at a
        # time. Every member inherits them.
        wanted = json.loads(payload)
        if len(directories) != wanted["directories"]:
            raise OSError("%d directories came, expected %d" % (len(directories), wanted["directories"]))

        def add(directory, allowed):
            rule = allowed.to_bytes(8, sys.byteorder) + directory.to_bytes(4, sys.byteorder)
            if library.syscall(machine[4], State.rules, 1, rule, 0) != 0:
                raise OSError(ctypes.get_errno(), "landlock_add_rule")

        if State.rules is None:
            values = (ctypes.c_uint64 * 1)(wanted["handled"])
            rules = library.syscall(machine[2], values, 8, 0)
            if rules < 0:
                raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
            State.rules = rules
            for path, allowed in wanted["rules"]:
                directory = os.open(path, os.O_PATH | os.O_CLOEXEC)
                add(directory, allowed)
                close(directory)
        for directory in directories:
            add(directory, wanted["write"])
        if wanted["last"]:
            if library.syscall(machine[3], State.rules, 0) != 0:
                raise OSError(ctypes.get_errno(), "landlock_restrict_self")
            close(State.rules)

    def enter_domain():
        # A Landlock domain of its own: no signal and no look into other members, nor into the origin.
        if library is None:
            return
        # Moving files from directory to directory is refused by every domain that does not allow it.
        move = 1 << 13
        for attributes, size in (((move, 0, 3), 24), ((1 << 11 | move, 0, 0), 8), ((1 << 11, 0, 0), 8)):
            values = (ctypes.c_uint64 * 3)(*attributes)
            rules = library.syscall(machine[2], values, size, 0)
            if rules >= 0:
                if attributes[0] & move:
                    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
                    rule = move.to_bytes(8, sys.byteorder) + root.to_bytes(4, sys.byteorder)
                    library.syscall(machine[4], rules, 1, rule, 0)
                    close(root)
                library.syscall(machine[3], rules, 0)
                close(rules)
                return

    if options["forks"] and library is not None:
        library.syscall(machine[1], 47, 4, 0, 0, 0)
        right_to_change_root(False)

    def on_interrupt(number, frame):
        if State.running and getpid() == State.pid:
            State.interrupted = True
            # Not in the lines that say how a cell ended, nor in this function: they must come to their end, however
            # many interrupts there are. What code a cell runs has frames of its own.
            if frame is None or frame.f_code not in State.own:
                raise KeyboardInterrupt

    def catch_interrupts():
        _signal.signal(_signal.SIGINT, on_interrupt)

    def after_fork():
        # A copy that the code made has no part in the session.
        if not State.forking:
            State.running = False
            State.pid = -1
            try:
                close(CONTROL)
            except OSError:
                pass
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)

    os.register_at_fork(after_in_child=after_fork)

    def send(kind, nonce, payload=b""):
        if getpid() != State.pid:
            exit(0)
        try:
            write(CONTROL, kind + nonce + payload)
        except OSError:
            exit(70)

    def open_socket():
        State.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, fileno=CONTROL)

    def receive():
        while True:
            data, ancillary, _, _ = State.socket.recvmsg(LARGEST + HEAD, 1200, 0x40000000)
            if not data:
                exit(0)
            descriptors = []
            for level, kind, content in ancillary:
                if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                    descriptors += memoryview(content[: len(content) & ~3]).cast("i").tolist()
            if len(data) >= HEAD:
                return data[:1], data[1:HEAD], data[HEAD:], descriptors

    def reap():
        for pid in list(State.children):
            try:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    State.children.discard(pid)
            except OSError:
                State.children.discard(pid)

    def flush():
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            try:
                stream.flush()
            except BaseException:
                pass

    def become(descriptors):
        control, out, error = descriptors[:3]
        State.pid = getpid()
        State.children = set()
        State.loop = None
        # The old socket object owns the number that the new socket gets.
        State.socket.detach()
        os.dup2(control, CONTROL, False)
        os.dup2(out, 1)
        os.dup2(error, 2)
        for descriptor in (control, out, error):
            close(descriptor)
        open_socket()
        # A group and not a session of its own: the kernel would make it wait like a program of somebody else.
        os.setpgid(0, 0)
        catch_interrupts()
        if len(descriptors) > 3:
            try:
                here = os.getcwd()
            except OSError:
                here = options["workspace"]
            os.fchdir(descriptors[3])
            right_to_change_root(True)
            os.chroot(".")
            right_to_change_root(False)
            close(descriptors[3])
            try:
                os.chdir(here)
            except OSError:
                os.chdir(options["workspace"])
        send(b"H", NOBODY)
        settle()

    def settle():
        # What must be done before the first cell, while the host continues.
        enter_domain()
        # What came before the fork is shared memory as long as nobody touches it: the collector shall not.
        gc.freeze()
        random = sys.modules.get("numpy.random")
        if random is not None:
            try:
                random.seed()
            except Exception:
                pass

    def spawn(nonce, descriptors):
        # Gives whether this is the new member.
        if not 3 <= len(descriptors) <= 4:
            for descriptor in descriptors:
                close(descriptor)
            send(b"F", nonce, b"wrong descriptors")
            return False
        flush()
        State.forking = True
        try:
            pid = os.fork()
        except OSError as error:
            pid, reason = -1, str(error)
        State.forking = False
        if pid == 0:
            try:
                become(descriptors)
            except BaseException as error:
                try:
                    send(b"H", NOBODY, repr(error).encode("utf-8", "replace")[:1000])
                finally:
                    exit(71)
            return True
        for descriptor in descriptors:
            close(descriptor)
        if pid > 0:
            State.children.add(pid)
            send(b"F", nonce)
        else:
            send(b"F", nonce, reason.encode("utf-8", "replace")[:1000])
        return False

    # From here on: a member.

    # Large pages: a fork copies the tables of the memory, which are 500 times smaller with them. The C library asks for
    # them where it gets much at once; what the allocator of small objects has got is moved into them while nobody waits.
    SMALL = os.sysconf("SC_PAGESIZE")
    try:
        with open("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") as file:
            LARGE = int(file.read())
        LARGE = LARGE if ctypes and SMALL < LARGE <= 1 << 25 else 0
    except (OSError, ValueError):
        LARGE = 0
    LITTLE = sys.byteorder == "little"
    WAITING = select.poll()
    WAITING.register(CONTROL, select.POLLIN)

    def memory():
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * SMALL

    def large_blocks():
        # The parts of the own memory that one large page could hold, and that nearly fill it already: at most one part
        # in sixteen is added. What a fork shares with another member, or has in a file, stays as it is.
        with open("/proc/self/maps") as file:
            areas = [line.split() for line in file]
        pages = LARGE // SMALL
        with open("/proc/self/pagemap", "rb", 0) as file:
            for area in areas:
                if area[1] != "rw-p" or area[4] != "0" or area[5:] not in ([], ["[heap]"]):
                    continue
                start, end = (int(place, 16) for place in area[0].split("-"))
                for place in range(-(-start // LARGE) * LARGE, end - LARGE + 1, LARGE):
                    state = os.pread(file.fileno(), pages * 8, place // SMALL * 8)[7 if LITTLE else 0 :: 8]
                    # Present, of no file, and mapped here alone; the other is mapped elsewhere too.
                    if state.count(0x80):
                        State.shares = True
                    elif state.count(0x81) >= pages - pages // 16:
                        yield place

    def use_idle_time():
        # After a cell, and until the host has something to say.
        try:
            if State.blocks is None:
                if abs(memory() - State.settled) < 2 * LARGE or WAITING.poll(50):
                    return
                State.blocks, State.shares = large_blocks(), False
            for place in State.blocks:
                # Linux 6.1 knows this advice. Without memory for it, or none within the limit, all stays as it is.
                if library.madvise(ctypes.c_void_p(place), ctypes.c_size_t(LARGE), 25) != 0:
                    if ctypes.get_errno() in (12, 16):
                        break
                if WAITING.poll(0):
                    return
            if not State.shares:
                State.settled = memory()
        except (OSError, ValueError):
            State.settled = 1 << 62
        State.blocks = None

    def await_result(coroutine):
        import asyncio
        if State.loop is None or State.loop.is_closed():
            State.loop = asyncio.new_event_loop()
        loop = State.loop
        asyncio.set_event_loop(loop)
        task = loop.create_task(coroutine)
        try:
            return loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                try:
                    loop.run_until_complete(task)
                except BaseException:
                    pass
            raise

    def evaluate(code):
        result = eval(code, main.__dict__)
        return await_result(result) if code.co_flags & 0x80 else result

    def execute(source, name):
        # 0x2000: `await` outside of functions. Nothing of this file's own settings.
        tree = compile(source, name, "exec", 0x2400, True)
        last = None
        if tree.body and isinstance(tree.body[-1], _ast.Expr):
            last = _ast.Expression(tree.body.pop().value)
        if tree.body:
            evaluate(compile(tree, name, "exec", 0x2000, True))
        return evaluate(compile(last, name, "eval", 0x2000, True)) if last else None

    def show_error(error):
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == "<string>":
            trace = trace.tb_next
        try:
            traceback.print_exception(type(error), error, trace)
            peer = display.peer(error)
            if peer:
                print("no connection to " + peer, file=sys.stderr)
        except BaseException:
            text = "".join(traceback.format_exception(type(error), error, trace))
            write(2, text.encode("utf-8", "backslashreplace"))

    def cell(nonce, number, source):
        name = "<cell %d>" % number
        notes = []

        def note(text):
            if len(notes) < 20:
                notes.append(text)

        value, ended, code = None, b"o", 0
        display.note = note
        display.begin("figure-%d" % number, "value-%d" % number)
        State.interrupted = False
        catch_interrupts()
        try:
            try:
                source = source.decode("utf-8")
                linecache.cache[name] = (len(source), None, source.splitlines(True), name)
                State.cells.append(name)
                if len(State.cells) > 1000:
                    linecache.cache.pop(State.cells.pop(0), None)
                State.running = True
                result = execute(source, name)
                value = values.describe(result)
                display.keep_shown(result)
                result = None
                display.keep_figures()
                flush()
                State.running = False
            except SystemExit as error:
                State.running = False
                code = 0 if error.code is None else error.code if type(error.code) is int else 1
                if type(error.code) not in (int, type(None)):
                    print(error.code, file=sys.stderr)
                ended, code = b"q", code & 255
            except BaseException as error:
                State.running = False
                ended = b"i" if State.interrupted and isinstance(error, KeyboardInterrupt) else b"x"
                value = None
                show_error(error)
        except BaseException:
            # An interrupt that came between the lines.
            State.running = False
            value, ended = None, b"i"
        if getpid() != State.pid:
            flush()
            exit(0)
        if ended != b"o":
            try:
                pyplot = sys.modules.get("matplotlib.pyplot")
                pyplot and pyplot.close("all")
            except BaseException:
                pass
        flush()
        packets = [(b"N", text.encode("utf-8", "replace")[:1000]) for text in notes]
        if value is not None:
            packets += [(b"V", value[place : place + LARGEST]) for place in range(0, len(value), LARGEST)]
        return packets + [(b"E", ended + bytes([code]))]

    State.own = (cell.__code__, on_interrupt.__code__)

    def run(nonce, number, source):
        # The host waits for the end of the cell, whatever a handler of the code's own does meanwhile.
        packets = None
        while packets is None or packets:
            try:
                if packets is None:
                    packets = [(b"E", b"i\0")]
                    packets = cell(nonce, number, source)
                catch_interrupts()
                while packets:
                    send(packets[0][0], nonce, packets[0][1])
                    packets.pop(0)
            except KeyboardInterrupt:
                State.running = False

    def member():
        parts, total = [], 0
        while True:
            try:
                if LARGE:
                    use_idle_time()
                kind, nonce, payload, descriptors = receive()
                reap()
                if kind == b"B":
                    if spawn(nonce, descriptors):
                        parts, total = [], 0
                elif kind == b"P":
                    parts.append(payload)
                elif kind == b"C" and len(payload) >= 4:
                    State.blocks = None
                    number = int.from_bytes(payload[:4], "little")
                    source, parts = b"".join(parts) + payload[4:], []
                    run(nonce, number, source)
                    source = None
            except KeyboardInterrupt:
                continue

    def origin():
        while True:
            kind, nonce, payload, descriptors = receive()
            reap()
            if kind == b"L":
                try:
                    lock_files(payload, descriptors)
                    send(b"R", nonce)
                except Exception as error:
                    send(b"R", nonce, repr(error).encode("utf-8", "replace")[:1000])
                for descriptor in descriptors:
                    close(descriptor)
            elif kind == b"B" and spawn(nonce, descriptors):
                return member()

    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    os.chdir(options["start"])
    sys.meta_path.insert(0, display)
    # Packages that were asked for come before those of the host.
    hosts = [index for index, path in enumerate(sys.path) if path.endswith(("site-packages", "dist-packages"))]
    place = hosts[0] if hosts else len(sys.path)
    sys.path[place:place] = options["packages"]
    sys.path.append(options["start"])
    # What is compiled of modules in the workspace is not an artifact.
    sys.dont_write_bytecode = True
    os.set_inheritable(CONTROL, False)
    open_socket()
    send(b"R", NOBODY, b"ready" if library is not None else b"no ctypes")
    origin()


_start()
