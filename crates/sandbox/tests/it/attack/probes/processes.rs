//! Rows 3, 4, 5, 6, 7, 8, 21, 23, 24, 25, 33, 66.

use crate::attack::expected::{ANY, INVISIBLE, NO_CALL, OK, REFUSED, all, of};
use crate::attack::{Probe, Who, inside};

const OWN_MEMORY: &str = "a process may write to its own memory there, which is its own copy";

pub(crate) const PROBES: &[Probe] = &[
    inside(
        3,
        "secrets in the own environment",
        "found = sorted(set(os.environ) & set(NAMES))\n'ok' if not found and 'CANARY' not in str(os.environ) else str(found)",
        all(OK),
    ),
    inside(
        4,
        "environment of the first process",
        "attempt(lambda: open('/proc/1/environ').read())",
        all(&["EACCES", "EPERM"]).minimal(ANY).in_own_kernel(&["allowed"]),
    ),
    inside(
        4,
        "environment of a host process",
        "attempt(lambda: open(f'/proc/{PID}/environ').read())",
        of(ANY, INVISIBLE, REFUSED, INVISIBLE),
    ),
    inside(
        4,
        "maps of the parent",
        "attempt(lambda: open(f'/proc/{os.getppid()}/maps').read())",
        all(&["EACCES", "EPERM"]).minimal(ANY).in_own_kernel(&["allowed"]),
    ),
    inside(
        4,
        "processes of the host are listed",
        "'ok' if len([p for p in os.listdir('/proc') if p.isdigit()]) < 5 else 'allowed'",
        of(ANY, OK, &["verdict:exit"], OK),
    ),
    inside(5, "ptrace attach", "call(101, 16, PID, 0, 0)", all(REFUSED).minimal(ANY).in_own_kernel(&["ESRCH"])),
    inside(5, "ptrace traceme", "call(101, 0, 0, 0, 0)", all(REFUSED).minimal(ANY).in_own_kernel(&["allowed"])),
    inside(
        5,
        "process_vm_readv of the parent",
        "call(310, os.getppid(), 0, 0, 0, 0, 0)",
        all(REFUSED).minimal(ANY).in_own_kernel(NO_CALL),
    ),
    inside(5, "pidfd_getfd of the parent", "call(438, 3, 0, 0)", all(REFUSED).minimal(ANY).in_own_kernel(NO_CALL)),
    inside(
        6,
        "write /proc/self/mem",
        "attempt(lambda: open('/proc/self/mem', 'r+b'))",
        all(REFUSED).minimal(ANY),
    )
    .not_for(&[
        (Who::WithoutLandlock, OWN_MEMORY),
        (Who::ForkingSessions, OWN_MEMORY),
        (Who::Backend("docker"), OWN_MEMORY),
    ]),
    inside(6, "write /proc/1/mem", "attempt(lambda: open('/proc/1/mem', 'r+b'))", all(REFUSED).minimal(ANY)),
    inside(
        7,
        "kill a host process",
        "attempt(lambda: os.kill(PID, 9))",
        of(ANY, &["ESRCH"], REFUSED, &["ESRCH"]),
    )
    .not_for(&[(Who::Level("minimal"), "allowed there, and it would hit the operator's own processes")]),
    inside(
        7,
        "kill the first process",
        "import time\nattempt(lambda: os.kill(os.getppid(), 9)); time.sleep(0.1)\n'ok'",
        // Its own kernel allows it: the container ends with an error.
        all(OK).minimal(ANY).in_own_kernel(&["ok", "error:Backend"]),
    ),
    inside(
        7,
        "kill everything",
        "import signal\nattempt(lambda: os.kill(-1, 9))\n'ok'",
        all(OK).minimal(ANY),
    )
    .not_for(&[(Who::Level("minimal"), "allowed there, and it would hit the operator's own processes")]),
    inside(
        7,
        "pidfd_open and signal",
        "first(call(434, PID, 0), 'ok')",
        // A kernel without the call cannot block it.
        of(ANY, &["ESRCH", "ENOSYS"], &["allowed", "EPERM", "ENOSYS"], &["ESRCH", "ENOSYS"]),
    ),
    inside(
        8,
        "fork bomb",
        "import time\nn = 0\ntry:\n    while n < 500:\n        if os.fork() == 0: time.sleep(30)\n        n += 1\n    time.sleep(60)\nexcept OSError as e: r = errno.errorcode[e.errno]\nr",
        // The test daemon's runtime limits neither processes nor memory: there the time limit ends it. At
        // level `maximum` a denial ends the run, whether the program sees it or not.
        // Without cgroups, memory ends it first as root.
        all(&["EAGAIN", "verdict:processes"])
            .minimal_as_root(&["EAGAIN", "verdict:processes", "verdict:memory"])
            .in_own_kernel(&["EAGAIN", "verdict:timeout"]),
    ).slow(),
    inside(
        21,
        "zombie flood",
        "for _ in range(40):\n    if os.fork() == 0:\n        try: os.fork()\n        except OSError: pass\n        os._exit(0)\n    os.wait()\n'ok'",
        all(OK),
    ),
    inside(
        23,
        "subreaper",
        "libc.prctl(36, 1, 0, 0, 0)\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: os.execvp('sleep', ['sleep', '74001'])\n    os._exit(0)\nos.wait()\n'ok'",
        all(OK),
    ),
    inside(
        23,
        "clone with CLONE_PARENT",
        "pid = libc.syscall(56, 0x8000 | 17, 0, 0, 0, 0)\nif pid == 0: os.execvp('sleep', ['sleep', '74001'])\n'ok' if pid > 0 else 'failed'",
        all(OK),
    ),
    inside(24, "nice -20", "attempt(lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))", all(REFUSED).in_own_kernel(&["allowed"])),
    inside(
        24,
        "SCHED_FIFO",
        "attempt(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))",
        all(REFUSED).in_own_kernel(&["EINVAL", "EPERM"]),
    ),
    inside(24, "mlockall", "call(151, 3)", all(&["EPERM", "ENOMEM"])),
    inside(
        25,
        "raise a limit",
        "import resource\ntry:\n    resource.setrlimit(resource.RLIMIT_NOFILE, (100000, 100000)); r = 'allowed'\nexcept (ValueError, PermissionError): r = 'ok'\nr",
        all(OK),
    ),
    inside(25, "limit of another process", "call(302, 1, 7, 0, 0)", all(REFUSED).in_own_kernel(&["allowed"])),
    inside(
        25,
        "oom_score_adj",
        "attempt(lambda: os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-1000'))",
        all(REFUSED).in_own_kernel(&["allowed"]),
    ),
    inside(
        33,
        "inherited descriptors",
        "import fcntl\ndef is_open(n):\n    try: fcntl.fcntl(n, fcntl.F_GETFD); return True\n    except OSError: return False\n'ok' if not [n for n in range(6, 1000) if is_open(n)] and not is_open(3) else 'allowed'",
        all(OK),
    ),
    inside(66, "write to the control descriptor", "attempt(lambda: os.write(3, b'X' * 48))", all(&["EBADF"])),
    inside(66, "close everything", "os.closerange(0, 100)\nos._exit(0)", all(&["verdict:ok"])).not_for(&[(Who::Backend("session"), "the session ends: its own tests hold that")]),
];
