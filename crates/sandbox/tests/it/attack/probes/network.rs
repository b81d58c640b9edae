//! Rows 26, 27, 28, 29, 30, 31, 32.

use crate::attack::expected::{ANY, INVISIBLE, NO_CALL, OK, REFUSED, all, of};
use crate::attack::{Probe, Who, inside};

const LEAVES: &str = "allowed there; not tried, because it would leave this machine";

pub(crate) const PROBES: &[Probe] = &[
    inside(
        26,
        "TCP",
        "attempt(lambda: socket.socket(socket.AF_INET).connect(('127.0.0.1', PORT)))",
        // Its own loopback, without a listener.
        all(REFUSED).minimal(ANY).in_own_kernel(&["ECONNREFUSED"]),
    ),
    inside(
        26,
        "TCP, metadata address",
        "attempt(lambda: socket.socket(socket.AF_INET).connect(('169.254.169.254', 80)))",
        all(REFUSED).minimal(ANY).in_own_kernel(&["EHOSTUNREACH", "ENETUNREACH"]),
    )
    .not_for(&[(Who::Level("minimal"), LEAVES)]),
    inside(
        27,
        "UDP",
        "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53)))",
        all(REFUSED).minimal(ANY).in_own_kernel(&["allowed"]),
    ),
    inside(
        27,
        "name resolution",
        "try:\n    socket.getaddrinfo('example.com', 80); r = 'allowed'\nexcept OSError: r = 'ok'\nr",
        all(OK).minimal(ANY),
    )
    .not_for(&[(Who::Level("minimal"), LEAVES)]),
    inside(
        28,
        "ping socket",
        "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1))",
        all(REFUSED).minimal(ANY).in_own_kernel(&["allowed"]),
    ),
    inside(
        28,
        "raw socket",
        "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))",
        all(REFUSED).minimal(ANY),
    ),
    inside(
        28,
        "packet socket",
        "attempt(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))",
        all(REFUSED).minimal(ANY),
    ),
    inside(
        28,
        "netlink",
        "attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))",
        all(REFUSED).minimal(ANY).in_own_kernel(&["allowed"]),
    ),
    inside(
        28,
        "kernel crypto",
        "attempt(lambda: socket.socket(38, socket.SOCK_SEQPACKET))",
        all(REFUSED).minimal(ANY).in_own_kernel(&["EAFNOSUPPORT"]),
    ),
    inside(
        28,
        "bluetooth",
        "attempt(lambda: socket.socket(31, socket.SOCK_RAW))",
        all(REFUSED).minimal(ANY).in_own_kernel(&["EAFNOSUPPORT"]),
    ),
    inside(
        29,
        "vsock",
        "attempt(lambda: socket.socket(40, socket.SOCK_STREAM))",
        all(REFUSED).in_own_kernel(&["EAFNOSUPPORT"]),
    ),
    inside(30, "io_uring", "call(425, 8, 0)", all(NO_CALL).in_own_kernel(&["EFAULT", "ENOSYS"])),
    inside(
        31,
        "unix socket of the host by path",
        "attempt(lambda: socket.socket(socket.AF_UNIX).connect(HOST + '/socket'))",
        of(ANY, INVISIBLE, REFUSED, INVISIBLE),
    ),
    inside(
        31,
        "datagram pair to a path",
        "def f():\n    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n    a.sendto(b'x', HOST + '/datagrams')\nattempt(f)",
        of(ANY, &["ENOENT", "EISCONN"], REFUSED, &["ENOENT", "EISCONN"]),
    ),
    inside(
        32,
        "abstract socket of the host",
        "attempt(lambda: socket.socket(socket.AF_UNIX).connect('\\0' + HOST))",
        of(ANY, &["ECONNREFUSED", "EPERM"], REFUSED, &["ECONNREFUSED", "EPERM"]),
    ),
];
