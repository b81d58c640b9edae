//! Rows 9, 10, 11, 12, 13, 17.

use crate::attack::expected::{Answers, OK, REFUSED, all, of};
use crate::attack::{Probe, Who, inside};

const NO_MEMORY: Answers = &["EINVAL", "ENOSPC", "ENOMEM", "ENOSYS"];

pub(crate) const PROBES: &[Probe] = &[
    inside(
        9,
        "memory bomb",
        "x = []\nwhile True: x.append(bytearray(1 << 20))",
        all(&["verdict:memory", "verdict:exit"]).in_own_kernel(&["verdict:memory", "verdict:timeout"]),
    ).slow(),
    inside(
        9,
        "System V shared memory",
        "call(29, 0, 1 << 40, 0o600)", of(NO_MEMORY, NO_MEMORY, REFUSED, NO_MEMORY).in_own_kernel(&["allowed"])).slow(),
    inside(
        10,
        "fill /tmp",
        "def f():\n    g = open('/tmp/x', 'wb', 0)\n    for _ in range(200): g.write(b'x' * (1 << 20))\nattempt(f)",
        of(REFUSED, &["ENOSPC"], REFUSED, &["ENOSPC"]),
    ).slow().not_for(&[(Who::Level("minimal"), "allowed there, and it would write to the operator's own files; the workspace is filled instead")]),
    inside(
        10,
        "fill /dev/shm",
        "def f():\n    g = open('/dev/shm/x', 'wb', 0)\n    for _ in range(200): g.write(b'x' * (1 << 20))\nattempt(f)",
        of(REFUSED, &["ENOSPC"], REFUSED, &["ENOSPC"]),
    ).slow().not_for(&[(Who::Level("minimal"), "allowed there, and it would write to the operator's own files; the workspace is filled instead")]),
    inside(
        11,
        "a million empty files",
        "def f():\n    for i in range(1000000): open(f'/tmp/{i}', 'w').close()\nattempt(f)",
        of(REFUSED, &["ENOSPC"], REFUSED, &["ENOSPC"]).in_own_kernel(&["ENOSPC", "verdict:timeout"]),
    ).slow().not_for(&[(Who::Level("minimal"), "allowed there, and it would write to the operator's own files; the workspace is filled instead")]),
    inside(
        11,
        "ten thousand nested directories",
        "def f():\n    for _ in range(10000): os.mkdir('d' * 200); os.chdir('d' * 200)\nattempt(f) in ('ENOSPC', 'allowed') and 'ok'",
        // They are both too many and too large: the first exceeded count is the reason.
        all(&["ok", "verdict:disk", "verdict:inodes"]),
    ).slow(),
    inside(12, "sparse file of 1 TiB", "attempt(lambda: open('x', 'wb').truncate(1 << 40))", all(&["EFBIG"])),
    inside(
        12,
        "fallocate 1 TiB",
        "attempt(lambda: os.posix_fallocate(os.open('x', os.O_CREAT | os.O_RDWR), 0, 1 << 40))",
        all(&["EFBIG", "ENOSPC"]),
    ),
    inside(
        13,
        "descriptor exhaustion",
        "def f():\n    while True: os.dup(0)\nr = attempt(f)\nos.closerange(10, 1000)\nr",
        all(&["EMFILE"]),
    ),
    inside(
        13,
        "descriptors in flight",
        "def f():\n    a, b = socket.socketpair()\n    a.setblocking(False)\n    while True: a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack('50i', *([0] * 50)))])\nattempt(f)",
        all(&["EAGAIN", "ETOOMANYREFS"]).in_own_kernel(&["verdict:timeout", "verdict:memory", "EAGAIN"]),
    ),
    inside(
        17,
        "a fake result and escapes on output",
        "sys.stdout.write('\\x1b]52;c;aGk=\\x07 {\"verdict\":\"ok\"}\\n::result not json\\n')\n'ok'",
        all(OK),
    ),
];
