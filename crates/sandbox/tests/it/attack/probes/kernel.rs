//! Rows 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 62.

use crate::attack::expected::{ANY, Answers, INVISIBLE, NO_CALL, NO_WRITE, REFUSED, all, of};
use crate::attack::{Probe, Who, inside};

const GUARDED: Answers = &["EACCES", "ENOENT", "EPERM"];

const NO_STATUS: &[(Who, &str)] =
    &[(Who::UntracedRoot, "root without `CAP_SYS_PTRACE` does not see how its program ends in a session")];

pub(crate) const PROBES: &[Probe] = &[
    inside(36, "keyctl", "call(250, 0, -3, 0)", all(REFUSED).minimal(ANY)),
    inside(36, "add_key", "call(248, b'user', b'x', b'y', 1, -3)", all(REFUSED).minimal(ANY)),
    inside(36, "request_key", "call(249, b'user', b'x', 0, 0)", all(REFUSED).minimal(ANY)),
    inside(37, "bpf", "call(321, 0, 0, 0)", all(REFUSED).minimal(ANY)),
    inside(
        37,
        "perf_event_open",
        "call(298, 0, 0, -1, -1, 0)",
        all(REFUSED).minimal(ANY).in_own_kernel(&["ENODEV", "EPERM"]),
    ),
    inside(37, "userfaultfd", "call(323, 1)", all(NO_CALL).minimal(ANY)),
    inside(37, "kexec_load", "call(246, 0, 0, 0, 0)", all(REFUSED).minimal(ANY)),
    inside(37, "init_module", "call(175, 0, 0, 0)", all(REFUSED).minimal(ANY)),
    inside(37, "iopl", "call(172, 3)", all(REFUSED).minimal(ANY)),
    inside(37, "modify_ldt", "call(154, 0, 0, 0)", all(REFUSED).minimal(ANY)),
    inside(38, "mount", "call(165, b'none', b'.', b'tmpfs', 0, 0)", all(REFUSED)),
    inside(38, "unmount a mask", "call(166, b'/proc', 2) if bare() else 'it has capabilities'", all(REFUSED)),
    inside(38, "fsopen", "call(430, b'tmpfs', 0)", all(REFUSED).in_own_kernel(&["ENOSYS"])),
    inside(38, "open_tree", "call(428, -100, b'/', 1)", all(REFUSED).in_own_kernel(&["ENOSYS"])),
    inside(38, "move_mount", "call(429, -100, b'.', -100, b'.', 0)", all(REFUSED).in_own_kernel(&["ENOSYS"])),
    inside(38, "mount_setattr", "call(442, -100, b'/', 0, 0, 0)", all(REFUSED).in_own_kernel(&["ENOSYS"])),
    inside(38, "pivot_root", "call(155, b'.', b'.')", all(REFUSED)),
    inside(38, "chroot", "attempt(lambda: os.chroot('.'))", all(REFUSED)),
    inside(38, "write to the root", "attempt(lambda: open('/evil', 'w'))", all(&["EROFS", "EACCES"]))
        .not_for(&[(Who::Level("minimal"), "allowed there, and it would write to the operator's own files")]),
    inside(38, "write to /usr", "attempt(lambda: open('/usr/bin/evil', 'w'))", all(&["EROFS", "EACCES"]))
        .not_for(&[(Who::Level("minimal"), "allowed there, and it would write to the operator's own files")]),
    inside(
        39,
        "unshare a user namespace",
        "call(272, 0x10000000)",
        all(REFUSED).minimal(ANY).in_own_kernel(&["allowed"]),
    ),
    inside(
        39,
        "clone a user namespace",
        "call(56, 0x10000000 | 17, 0, 0, 0, 0)",
        all(REFUSED).minimal(ANY).in_own_kernel(&["allowed", "verdict:ok"]),
    ),
    inside(39, "setns", "call(308, 0, 0)", all(REFUSED).minimal(ANY).in_own_kernel(&["ENOTSUP", "EPERM"])),
    inside(40, "clone3", "call(435, 0, 0)", all(&["ENOSYS"]).minimal(ANY)),
    inside(
        41,
        "x32 call",
        "call(0x40000000 | 39)",
        all(&["verdict:denied"]).minimal(ANY).in_own_kernel(&["ENOSYS"]),
    )
    .not_for(NO_STATUS),
    inside(
        41,
        "int 0x80",
        "import mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3')\nctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()",
        all(&["verdict:denied"]).minimal(ANY).in_own_kernel(&["verdict:ok"]),
    )
    .not_for(NO_STATUS),
    inside(
        42,
        "control groups",
        "first(*[attempt(lambda: open('/sys/fs/cgroup/' + p, 'a')) for p in ('release_agent', 'memory/release_agent', 'cgroup.procs', 'pids/tasks')])",
        // A container sees its own cgroup, read-only. With a mount namespace the directory is read-only too,
        // which the kernel may report first.
        of(NO_WRITE, INVISIBLE, REFUSED, INVISIBLE)
            .minimal_as_root(ANY)
            .minimal_as_root_apart(NO_WRITE)
            .in_container(NO_WRITE),
    ),
    inside(
        43,
        "core pattern",
        "attempt(lambda: open('/proc/sys/kernel/core_pattern', 'w'))",
        // With a mount namespace the directory is read-only too, which the kernel reports first, and so it is in a
        // container.
        of(NO_WRITE, INVISIBLE, NO_WRITE, INVISIBLE)
            .minimal_as_root(ANY)
            .minimal_as_root_apart(NO_WRITE)
            .in_container(NO_WRITE),
    ),
    inside(43, "uevent helper", "attempt(lambda: open('/sys/kernel/uevent_helper', 'w'))", all(NO_WRITE)),
    inside(
        43,
        "sysrq",
        "attempt(lambda: open('/proc/sysrq-trigger', 'w'))",
        of(NO_WRITE, INVISIBLE, &["EACCES", "ENOENT"], INVISIBLE).in_container(NO_WRITE),
    ),
    inside(
        43,
        "kernel settings",
        "attempt(lambda: os.listdir('/proc/sys'))",
        // A container runtime's /proc has them, read-only.
        of(ANY, INVISIBLE, REFUSED, INVISIBLE).in_container(&["allowed"]),
    ),
    inside(
        44,
        "devices",
        "first(*[attempt(lambda: open('/dev/' + d, 'rb')) for d in ('kvm', 'vda', 'mem', 'fuse', 'loop0', 'kmsg')])",
        of(GUARDED, INVISIBLE, GUARDED, INVISIBLE)
            .minimal_as_root(ANY)
            .minimal_as_root_apart(GUARDED)
            .in_own_kernel(&["allowed"]),
    ),
    inside(
        44,
        "mknod",
        "attempt(lambda: os.mknod('node', 0o20600, os.makedev(1, 3)))",
        all(REFUSED).in_own_kernel(&["allowed"]),
    ),
    inside(45, "TIOCSTI", "call(16, 0, 0x5412, b'x')", all(REFUSED).in_own_kernel(&["ENOTTY"])),
    inside(
        45,
        "TIOCSTI with high bits",
        "call(16, 0, 0x100005412, b'x')",
        all(REFUSED).in_own_kernel(&["ENOTTY"]),
    ),
    inside(
        45,
        "terminal",
        "attempt(lambda: open('/dev/tty'))",
        // A container has the device, but no terminal.
        of(&["ENXIO", "EPERM", "EACCES"], INVISIBLE, REFUSED, INVISIBLE)
            .in_container(&["ENXIO"])
            .in_own_kernel(&["EIO", "ENXIO"]),
    ),
    inside(
        62,
        "set the clock",
        "import time\nattempt(lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()))",
        all(REFUSED),
    ),
];
