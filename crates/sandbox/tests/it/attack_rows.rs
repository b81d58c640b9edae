//! The attack table: number, name, probe and what each mode must answer. Numbers are those of the project's list.
//!
//! A probe is Python; the value of its last expression is compared with the answers. `verdict:KIND` stands for a
//! verdict. Prelude: `call(number, …)` makes a raw system call, `attempt(function)` calls it; both give `allowed` or the
//! name of the error. `HOST` is a folder of the host with a readable file `secret`, a listening unix socket `socket`, and
//! the abstract socket `\0HOST`; `PID` is a process of the host with the same identity as the code, if that exists.

/// The answers of the modes strict, standard and standard without namespaces.
pub(crate) type Answers = [&'static [&'static str]; 3];

/// One attack.
pub(crate) struct Row {
    pub(crate) number: u32,
    pub(crate) name: &'static str,
    pub(crate) code: &'static str,
    pub(crate) answers: Answers,
}

const fn row(number: u32, name: &'static str, code: &'static str, answers: Answers) -> Row {
    Row { number, name, code, answers }
}

/// The same answers in every mode.
const fn all(answers: &'static [&'static str]) -> Answers {
    [answers, answers, answers]
}

const REFUSED: &[&str] = &["EPERM", "EACCES"];
const INVISIBLE: &[&str] = &["ENOENT"];
const NOT_THERE: Answers = [INVISIBLE, INVISIBLE, REFUSED];
const NO_CALL: &[&str] = &["EPERM", "ENOSYS"];
const NO_WRITE: &[&str] = &["EROFS", "EACCES", "EPERM", "ENOENT", "ETXTBSY"];
const OK: &[&str] = &["ok"];

pub(crate) const PRELUDE: &str = "\
import ctypes, errno, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return 'allowed' if result >= 0 else errno.errorcode[ctypes.get_errno()]
def attempt(function):
    try:
        function()
        return 'allowed'
    except OSError as error:
        return errno.errorcode[error.errno]
def first(*results):
    return next((result for result in results if result == 'allowed'), results[0])
";

pub(crate) const ROWS: &[Row] = &[
    row(1, "read /etc/shadow", "attempt(lambda: open('/etc/shadow'))", [INVISIBLE, REFUSED, REFUSED]),
    row(2, "read a file of the host outside", "attempt(lambda: open(HOST + '/secret'))", NOT_THERE),
    row(
        2,
        "list a home folder",
        "first(*[attempt(lambda: os.listdir(p)) for p in ('/root', '/home')])",
        NOT_THERE,
    ),
    row(3, "secrets in the own environment", "'allowed' if 'CANARY' in str(os.environ) else 'ok'", all(OK)),
    row(
        4,
        "environment of the first process",
        "attempt(lambda: open('/proc/1/environ').read())",
        all(&["EACCES", "EPERM"]),
    ),
    row(
        4,
        "environment of a host process",
        "attempt(lambda: open(f'/proc/{PID}/environ').read())",
        NOT_THERE,
    ),
    row(
        4,
        "maps of the parent",
        "attempt(lambda: open(f'/proc/{os.getppid()}/maps').read())",
        all(&["EACCES", "EPERM"]),
    ),
    row(
        4,
        "processes of the host are listed",
        "'ok' if len([p for p in os.listdir('/proc') if p.isdigit()]) < 5 else 'allowed'",
        [OK, OK, &["verdict:exit"]],
    ),
    row(5, "ptrace attach", "call(101, 16, PID, 0, 0)", all(REFUSED)),
    row(5, "ptrace traceme", "call(101, 0, 0, 0, 0)", all(REFUSED)),
    row(5, "process_vm_readv of the parent", "call(310, os.getppid(), 0, 0, 0, 0, 0)", all(REFUSED)),
    row(5, "pidfd_getfd of the parent", "call(438, 3, 0, 0)", all(REFUSED)),
    row(6, "write /proc/self/mem", "attempt(lambda: open('/proc/self/mem', 'r+b'))", all(REFUSED)),
    row(6, "write /proc/1/mem", "attempt(lambda: open('/proc/1/mem', 'r+b'))", all(REFUSED)),
    row(7, "kill a host process", "attempt(lambda: os.kill(PID, 9))", [&["ESRCH"], &["ESRCH"], REFUSED]),
    row(
        7,
        "kill the first process",
        "import time\nattempt(lambda: os.kill(os.getppid(), 9)); time.sleep(0.1)\n'ok'",
        all(OK),
    ),
    row(7, "kill everything", "import signal\nattempt(lambda: os.kill(-1, 9))\n'ok'", all(OK)),
    row(
        7,
        "pidfd_open and signal",
        "first(call(434, PID, 0), 'ok')",
        [&["ESRCH"], &["ESRCH"], &["allowed", "EPERM"]],
    ),
    row(
        8,
        "fork bomb",
        "import time\nn = 0\ntry:\n    while n < 5000:\n        if os.fork() == 0: time.sleep(30)\n        n += 1\nexcept OSError as e: r = errno.errorcode[e.errno]\nr",
        all(&["EAGAIN"]),
    ),
    row(
        9,
        "memory bomb",
        "x = []\nwhile True: x.append(bytearray(1 << 20))",
        all(&["verdict:memory", "verdict:exit"]),
    ),
    row(
        9,
        "System V shared memory",
        "call(29, 0, 1 << 40, 0o600)",
        [&["EINVAL", "ENOSPC", "ENOMEM"], &["EINVAL", "ENOSPC", "ENOMEM"], REFUSED],
    ),
    row(
        10,
        "fill /tmp",
        "def f():\n    g = open('/tmp/x', 'wb', 0)\n    for _ in range(200): g.write(b'x' * (1 << 20))\nattempt(f)",
        [&["ENOSPC"], &["ENOSPC"], REFUSED],
    ),
    row(
        10,
        "fill /dev/shm",
        "def f():\n    g = open('/dev/shm/x', 'wb', 0)\n    for _ in range(200): g.write(b'x' * (1 << 20))\nattempt(f)",
        [&["ENOSPC"], &["ENOSPC"], REFUSED],
    ),
    row(
        11,
        "a million empty files",
        "def f():\n    for i in range(1000000): open(f'/tmp/{i}', 'w').close()\nattempt(f)",
        [&["ENOSPC"], &["ENOSPC"], REFUSED],
    ),
    row(
        11,
        "ten thousand nested folders",
        "def f():\n    for _ in range(10000): os.mkdir('d' * 200); os.chdir('d' * 200)\nattempt(f) in ('ENOSPC', 'allowed') and 'ok'",
        all(&["ok", "verdict:disk"]),
    ),
    row(12, "sparse file of 1 TiB", "attempt(lambda: open('x', 'wb').truncate(1 << 40))", all(&["EFBIG"])),
    row(
        12,
        "fallocate 1 TiB",
        "attempt(lambda: os.posix_fallocate(os.open('x', os.O_CREAT | os.O_RDWR), 0, 1 << 40))",
        all(&["EFBIG", "ENOSPC"]),
    ),
    row(
        13,
        "descriptor exhaustion",
        "def f():\n    while True: os.dup(0)\nr = attempt(f)\nos.closerange(10, 1000)\nr",
        all(&["EMFILE"]),
    ),
    row(
        13,
        "descriptors in flight",
        "def f():\n    a, b = socket.socketpair()\n    a.setblocking(False)\n    while True: a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack('50i', *([0] * 50)))])\nattempt(f)",
        all(&["EAGAIN", "ETOOMANYREFS"]),
    ),
    row(
        17,
        "a fake result and escapes on output",
        "sys.stdout.write('\\x1b]52;c;aGk=\\x07 {\"verdict\":\"ok\"}\\n::result not json\\n')\n'ok'",
        all(OK),
    ),
    row(
        21,
        "zombie flood",
        "for _ in range(40):\n    if os.fork() == 0:\n        try: os.fork()\n        except OSError: pass\n        os._exit(0)\n    os.wait()\n'ok'",
        all(OK),
    ),
    row(
        23,
        "subreaper",
        "libc.prctl(36, 1, 0, 0, 0)\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: os.execvp('sleep', ['sleep', '74001'])\n    os._exit(0)\nos.wait()\n'ok'",
        all(OK),
    ),
    row(
        23,
        "clone with CLONE_PARENT",
        "pid = libc.syscall(56, 0x8000 | 17, 0, 0, 0, 0)\nif pid == 0: os.execvp('sleep', ['sleep', '74001'])\n'ok' if pid > 0 else 'failed'",
        all(OK),
    ),
    row(24, "nice -20", "attempt(lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))", all(REFUSED)),
    row(
        24,
        "SCHED_FIFO",
        "attempt(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))",
        all(REFUSED),
    ),
    row(24, "mlockall", "call(151, 3)", all(&["EPERM", "ENOMEM"])),
    row(
        25,
        "raise a limit",
        "import resource\ntry:\n    resource.setrlimit(resource.RLIMIT_NOFILE, (100000, 100000)); r = 'allowed'\nexcept (ValueError, PermissionError): r = 'ok'\nr",
        all(OK),
    ),
    row(25, "limit of another process", "call(302, 1, 7, 0, 0)", all(REFUSED)),
    row(
        25,
        "oom_score_adj",
        "attempt(lambda: open('/proc/self/oom_score_adj', 'w').write('-1000'))",
        all(REFUSED),
    ),
    row(
        26,
        "TCP",
        "attempt(lambda: socket.socket(socket.AF_INET).connect(('127.0.0.1', PORT)))",
        all(REFUSED),
    ),
    row(
        26,
        "TCP, metadata address",
        "attempt(lambda: socket.socket(socket.AF_INET).connect(('169.254.169.254', 80)))",
        all(REFUSED),
    ),
    row(
        27,
        "UDP",
        "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53)))",
        all(REFUSED),
    ),
    row(
        27,
        "name resolution",
        "try:\n    socket.getaddrinfo('example.com', 80); r = 'allowed'\nexcept OSError: r = 'ok'\nr",
        all(OK),
    ),
    row(
        28,
        "ping socket",
        "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1))",
        all(REFUSED),
    ),
    row(28, "raw socket", "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))", all(REFUSED)),
    row(
        28,
        "packet socket",
        "attempt(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))",
        all(REFUSED),
    ),
    row(28, "netlink", "attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))", all(REFUSED)),
    row(28, "kernel crypto", "attempt(lambda: socket.socket(38, socket.SOCK_SEQPACKET))", all(REFUSED)),
    row(28, "bluetooth", "attempt(lambda: socket.socket(31, socket.SOCK_RAW))", all(REFUSED)),
    row(29, "vsock", "attempt(lambda: socket.socket(40, socket.SOCK_STREAM))", all(REFUSED)),
    row(30, "io_uring", "call(425, 8, 0)", all(NO_CALL)),
    row(
        31,
        "unix socket of the host by path",
        "attempt(lambda: socket.socket(socket.AF_UNIX).connect(HOST + '/socket'))",
        NOT_THERE,
    ),
    row(
        31,
        "datagram pair to a path",
        "def f():\n    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n    a.sendto(b'x', HOST + '/datagrams')\nattempt(f)",
        [&["ENOENT", "EISCONN"], &["ENOENT", "EISCONN"], REFUSED],
    ),
    row(
        32,
        "abstract socket of the host",
        "attempt(lambda: socket.socket(socket.AF_UNIX).connect('\\0' + HOST))",
        [&["ECONNREFUSED", "EPERM"], &["ECONNREFUSED", "EPERM"], REFUSED],
    ),
    row(
        33,
        "inherited descriptors",
        "import fcntl\ndef is_open(n):\n    try: fcntl.fcntl(n, fcntl.F_GETFD); return True\n    except OSError: return False\n'ok' if not [n for n in range(6, 1000) if is_open(n)] and not is_open(3) else 'allowed'",
        all(OK),
    ),
    row(36, "keyctl", "call(250, 0, -3, 0)", all(REFUSED)),
    row(36, "add_key", "call(248, b'user', b'x', b'y', 1, -3)", all(REFUSED)),
    row(36, "request_key", "call(249, b'user', b'x', 0, 0)", all(REFUSED)),
    row(37, "bpf", "call(321, 0, 0, 0)", all(REFUSED)),
    row(37, "perf_event_open", "call(298, 0, 0, -1, -1, 0)", all(REFUSED)),
    row(37, "userfaultfd", "call(323, 1)", all(NO_CALL)),
    row(37, "kexec_load", "call(246, 0, 0, 0, 0)", all(REFUSED)),
    row(37, "init_module", "call(175, 0, 0, 0)", all(REFUSED)),
    row(37, "iopl", "call(172, 3)", all(REFUSED)),
    row(37, "modify_ldt", "call(154, 0, 0, 0)", all(REFUSED)),
    row(38, "mount", "call(165, b'none', b'/tmp', b'tmpfs', 0, 0)", all(REFUSED)),
    row(38, "unmount a mask", "call(166, b'/proc', 2)", all(REFUSED)),
    row(38, "fsopen", "call(430, b'tmpfs', 0)", all(REFUSED)),
    row(38, "open_tree", "call(428, -100, b'/', 1)", all(REFUSED)),
    row(38, "move_mount", "call(429, -100, b'/', -100, b'/tmp', 0)", all(REFUSED)),
    row(38, "mount_setattr", "call(442, -100, b'/', 0, 0, 0)", all(REFUSED)),
    row(38, "pivot_root", "call(155, b'.', b'.')", all(REFUSED)),
    row(38, "chroot", "attempt(lambda: os.chroot('.'))", all(REFUSED)),
    row(38, "write to the root", "attempt(lambda: open('/evil', 'w'))", all(&["EROFS", "EACCES"])),
    row(38, "write to /usr", "attempt(lambda: open('/usr/bin/evil', 'w'))", all(&["EROFS", "EACCES"])),
    row(39, "unshare a user namespace", "call(272, 0x10000000)", all(REFUSED)),
    row(39, "clone a user namespace", "call(56, 0x10000000 | 17, 0, 0, 0, 0)", all(REFUSED)),
    row(39, "setns", "call(308, 0, 0)", all(REFUSED)),
    row(40, "clone3", "call(435, 0, 0)", all(&["ENOSYS"])),
    row(41, "x32 call", "call(0x40000000 | 39)", all(&["verdict:denied"])),
    row(
        41,
        "int 0x80",
        "import mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3')\nctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()",
        all(&["verdict:denied"]),
    ),
    row(
        42,
        "control groups",
        "first(*[attempt(lambda: open('/sys/fs/cgroup/' + p, 'a')) for p in ('release_agent', 'memory/release_agent', 'cgroup.procs', 'pids/tasks')])",
        NOT_THERE,
    ),
    row(43, "core pattern", "attempt(lambda: open('/proc/sys/kernel/core_pattern', 'w'))", NOT_THERE),
    row(43, "uevent helper", "attempt(lambda: open('/sys/kernel/uevent_helper', 'w'))", NOT_THERE),
    row(
        43,
        "sysrq",
        "attempt(lambda: open('/proc/sysrq-trigger', 'w'))",
        [INVISIBLE, INVISIBLE, &["EACCES", "ENOENT"]],
    ),
    row(43, "kernel settings", "attempt(lambda: os.listdir('/proc/sys'))", NOT_THERE),
    row(
        44,
        "devices",
        "first(*[attempt(lambda: open('/dev/' + d, 'rb')) for d in ('kvm', 'vda', 'mem', 'fuse', 'loop0', 'kmsg')])",
        [INVISIBLE, INVISIBLE, &["EACCES", "ENOENT", "EPERM"]],
    ),
    row(44, "mknod", "attempt(lambda: os.mknod('node', 0o20600, os.makedev(1, 3)))", all(REFUSED)),
    row(45, "TIOCSTI", "call(16, 0, 0x5412, b'x')", all(REFUSED)),
    row(45, "TIOCSTI with high bits", "call(16, 0, 0x100005412, b'x')", all(REFUSED)),
    row(45, "terminal", "attempt(lambda: open('/dev/tty'))", [INVISIBLE, INVISIBLE, REFUSED]),
    row(
        46,
        "overwrite the running program",
        "first(*[attempt(lambda: open(p, 'r+b')) for p in ('/proc/self/exe', '/proc/1/exe')])",
        all(NO_WRITE),
    ),
    row(
        47,
        "out of the working folder",
        "def up():\n    try: return os.listdir('/proc/self/cwd/../..')\n    except OSError: return []\n'allowed' if {'work', 'root', '.host'} & set(up()) else 'ok'",
        all(OK),
    ),
    row(
        47,
        "parents of descriptors",
        "first(*[attempt(lambda: os.listdir(f'/proc/self/fd/{n}/..')) for n in range(6)])",
        all(&["ENOENT", "ENOTDIR", "EACCES"]),
    ),
    row(
        49,
        "root by another name",
        "first(attempt(lambda: open('/proc/self/root/etc/shadow')), attempt(lambda: open('/proc/1/root/etc/shadow')), attempt(lambda: open(f'/proc/self/root{HOST}/secret')))",
        [&["ENOENT", "EACCES"], REFUSED, REFUSED],
    ),
    row(51, "no new privileges", "'ok' if libc.prctl(39, 0, 0, 0, 0) == 1 else 'allowed'", all(OK)),
    row(
        51,
        "setuid programs",
        "import subprocess\ntry:\n    r = subprocess.run(['/usr/bin/su', '-c', 'id -u'], input=b'', capture_output=True)\n    r = 'allowed' if r.returncode == 0 else 'ok'\nexcept OSError: r = 'ok'\nr",
        all(OK),
    ),
    row(
        53,
        "hard link to a host file",
        "first(*[attempt(lambda: os.link(p, 'x')) for p in ('/usr/bin/env', '/etc/passwd')])",
        all(&["EXDEV", "EPERM", "EACCES"]),
    ),
    row(
        57,
        "shared temporary folder",
        "'ok' if os.listdir('/tmp') == [] else 'allowed'",
        [OK, OK, &["verdict:exit"]],
    ),
    row(
        58,
        "persistence outside of the workspace",
        "first(*[attempt(lambda: open(p, 'w')) for p in ('/etc/cron.d/x', '/usr/lib/python3/dist-packages/x.pth', '/root' + '/.bashrc')])",
        all(NO_WRITE),
    ),
    row(62, "set the clock", "call(227, 0, struct.pack('qq', 0, 0))", all(REFUSED)),
    row(66, "write to the control descriptor", "attempt(lambda: os.write(3, b'X' * 48))", all(&["EBADF"])),
    row(66, "close everything", "os.closerange(0, 100)\nos._exit(0)", all(&["verdict:ok"])),
];
