//! The rows of the attack table: number, attack, and the expected answer of each level.
//!
//! `A` allowed and documented, `E` rejected with an error, `I` invisible, `L` capped and reported, `K` killed
//! with a reason, `ok` the host is not fooled, `-` no guarantee of the level; `*` needs `cgroup.kill` or a
//! walk over the descendants. Levels in order: minimal, standard, strict, maximum.

/// One row.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) number: u32,
    pub(crate) attack: &'static str,
    /// The specified answers of the levels minimal, standard, strict, maximum.
    pub(crate) specified: [&'static str; 4],
}

impl Row {
    /// Prints it for `docs/attacks.md`.
    pub(crate) fn print(&self) {
        println!("\nATTACK ROW\t{}\t{}\t{}", self.number, self.attack, self.specified.join("\t"));
    }
}

const fn row(number: u32, attack: &'static str, specified: [&'static str; 4]) -> Row {
    Row { number, attack, specified }
}

pub(crate) const ROWS: [Row; 75] = [
    row(1, "read /etc/shadow (as root caller too)", ["A", "I/E", "I", "I"]),
    row(2, "read ~/.ssh, ~/.aws, ~/.config, browser profiles", ["A", "E", "I", "I"]),
    row(3, "secrets in own env (API keys of the host process)", ["I", "I", "I", "I"]),
    row(4, "/proc/1/environ, /proc/PPID/environ, cmdline, maps", ["A", "E", "I", "I"]),
    row(5, "ptrace / process_vm_readv / pidfd_getfd of a sibling or parent", ["A", "E", "I", "I"]),
    row(
        6,
        "/proc/PID/mem write, /proc/self/mem over read-only text of shared mapping",
        ["A", "E(other)", "I", "I"],
    ),
    row(7, "kill(-1,9), kill(parent), tgkill sibling, pidfd_send_signal", ["A", "E", "I", "I"]),
    row(8, "fork bomb", ["L", "L", "L", "K"]),
    row(
        9,
        "memory bomb: anon, mmap shared, tmpfs, memfd, SysV shm, page-table bomb",
        ["L", "L", "K(oom)", "K(oom)"],
    ),
    row(10, "disk fill in workspace, in /tmp, in /dev/shm", ["L", "L", "L", "L"]),
    row(
        11,
        "inode exhaustion (10^6 empty files), deep directory nesting (10^4 levels), 255-byte names",
        ["L", "L", "L", "L"],
    ),
    row(12, "sparse file 1 TiB, fallocate; artefact size counted both ways", ["L", "L", "L", "L"]),
    row(13, "fd exhaustion; fds passed over a socket in flight", ["L", "L", "L", "L"]),
    row(14, "output flood (GB/s to stdout and stderr), never-ending line, slow drip", ["L", "L", "L", "L"]),
    row(15, "stderr/stdout deadlock (fill one pipe while host reads the other)", ["ok", "ok", "ok", "ok"]),
    row(16, "stdin never read / stdin read forever (must see EOF)", ["ok", "ok", "ok", "ok"]),
    row(
        17,
        "invalid UTF-8, NUL, ANSI escapes, OSC 52, fake envelope/JSON on stdout",
        ["ok", "ok", "ok", "ok"],
    ),
    row(
        18,
        "child closes stdout but lives on; grandchild keeps the pipe open after exit",
        ["L(time-out rule)", "L", "L", "L"],
    ),
    row(19, "double-fork + setsid orphan outlives the time-out", ["K*", "K", "K", "K"]),
    row(20, "ignores SIGTERM/INT/HUP; SIGSTOPs itself; stops under ptrace", ["K", "K", "K", "K"]),
    row(21, "zombie flood, orphan reaping by PID 1", ["L", "L", "L", "L"]),
    row(
        22,
        "host supervisor SIGKILLed: nothing may survive (death pipe, PDEATHSIG, cgroup)",
        ["K*", "K", "K", "K"],
    ),
    row(
        23,
        "vfork / clone(CLONE_PARENT) / PR_SET_CHILD_SUBREAPER to dodge accounting",
        ["K*", "K", "K", "K"],
    ),
    row(24, "cpu spin in 100 threads; nice -20; SCHED_FIFO; mlockall", ["L", "L/E", "L/E", "L/E"]),
    row(25, "RLIMIT raise; prlimit on another process; oom_score_adj -1000", ["E", "E", "E", "E"]),
    row(26, "TCP connect out, to host loopback, to 169.254.169.254", ["A", "E", "E/I", "E/I"]),
    row(27, "UDP, QUIC, DNS query to 53 and through libc/nss/nscd/resolved socket", ["A", "E", "E", "E"]),
    row(28, "ICMP raw, ping socket, AF_PACKET, AF_NETLINK, AF_ALG, AF_BLUETOOTH", ["A", "E", "E", "E"]),
    row(29, "AF_VSOCK to CID 2 (only socket() in tests, never connect)", ["E", "E", "E", "E"]),
    row(30, "io_uring: openat/connect/socket operations round the filter", ["E", "E", "E", "E/K"]),
    row(31, "unix path sockets: docker.sock, ssh-agent, dbus, X11, Wayland, gpg", ["A", "E", "I", "I"]),
    row(32, "abstract unix socket to host and to a sibling run", ["A", "E", "I/E", "I"]),
    row(33, "inherited fds (open host file, listening socket, dir fd + openat ..)", ["I", "I", "I", "I"]),
    row(
        34,
        "egress proxy: NUL in host name, IPv6-mapped v4, decimal/octal IP, trailing dot, userinfo@, DNS rebinding, CNAME to loopback, HTTP Host != CONNECT, redirect, absolute-form path",
        ["-", "E", "E", "E"],
    ),
    row(
        35,
        "exfil through allowed domain: DNS labels, secret in reflected response (placeholder secrets only to their host/header)",
        ["-", "L", "L", "L"],
    ),
    row(36, "keyctl/add_key/request_key", ["A", "E", "E", "E/K"]),
    row(
        37,
        "bpf, perf_event_open, userfaultfd, kexec, init_module, iopl, modify_ldt",
        ["E/A", "E", "E", "K"],
    ),
    row(
        38,
        "mount, fsopen, move_mount, open_tree, pivot_root, chroot escape, umount of masks",
        ["E", "E", "E", "K"],
    ),
    row(39, "unshare/clone(NEWUSER) then gained caps; setns to host ns fds", ["A", "E", "E", "E/K"]),
    row(
        40,
        "clone3 (args not seen by seccomp): must be ENOSYS so libc falls back to checked clone",
        ["-", "E", "E", "E"],
    ),
    row(41, "x32 and int 0x80 ABI calls", ["-", "E/K", "K", "K"]),
    row(42, "cgroup v1 release_agent, cgroupfs remount, writing own cgroup.procs", ["E", "E", "I", "I"]),
    row(
        43,
        "core_pattern, binfmt_misc, /proc/sys, /sys writes, uevent_helper, sysrq",
        ["E(non-root)", "E", "I/E", "I"],
    ),
    row(44, "/dev/mem, /dev/kvm, /dev/fuse, block devices, mknod, loop devices", ["E", "E", "I", "I"]),
    row(
        45,
        "TIOCSTI / TIOCLINUX on inherited tty (legacy_tiocsti=1 here); setsid + /dev/tty",
        ["E", "E", "I", "I"],
    ),
    row(
        46,
        "/proc/self/exe and /proc/self/fd re-open to overwrite launcher (CVE-2019-5736)",
        ["E", "E", "E", "E"],
    ),
    row(
        47,
        "cwd or fd leak to host root: /proc/self/fd/N/.., /proc/self/cwd (CVE-2024-21626)",
        ["-", "E", "I", "I"],
    ),
    row(
        48,
        "set-up race: swap bind target/mask path for symlink during start (CVE-2021-30465, 2025-31133)",
        ["-", "E", "E", "E"],
    ),
    row(49, "/proc/self/root/..., /proc/PID/root path aliases round path rules", ["A", "E", "I", "I"]),
    row(
        50,
        "ld-linux.so binary as exec-denylist bypass; memfd_create+fexecve; noexec mount via interpreter",
        ["A", "A/E", "A/E", "E"],
    ),
    row(51, "setuid binaries (su, sudo, ping), file caps, LD_PRELOAD into them", ["A", "E(nnp)", "E", "E"]),
    row(
        52,
        "symlink in workspace -> host file, then *host* reads/writes/deletes it as artefact",
        ["E", "E", "E", "E"],
    ),
    row(
        53,
        "hardlink of unreadable host file into workspace (nlink>1 refused on export)",
        ["E", "E", "E", "E"],
    ),
    row(
        54,
        "upload/download names: ../x, absolute, NUL, newline, \"-rf\", CON, unicode look-alike, 4 KiB name, case collision",
        ["E", "E", "E", "E"],
    ),
    row(
        55,
        "artefact is FIFO, socket, device, directory, /proc magic link, file growing during copy, mandatory-lock/FUSE hang",
        ["E/L", "E/L", "E/L", "E/L"],
    ),
    row(
        56,
        "tar/zip artefact: traversal, symlink member, bomb (42.zip), setuid bits, absolute hardlink",
        ["E", "E", "E", "E"],
    ),
    row(
        57,
        "predictable temp names in shared /tmp (protected_symlinks=0 here), pre-created symlink",
        ["E", "E", "I", "I"],
    ),
    row(
        58,
        "persistence: write .git/hooks, .git/config, CLAUDE.md, .mcp.json, .claude/ or .codex settings that do not exist yet, .bashrc, cron, pth files, node_modules/.bin, Makefile",
        ["A", "E on protected set", "E/I", "I"],
    ),
    row(
        59,
        "model-supplied cwd / env / policy field enlarges the writable set (CVE-2025-59532)",
        ["E", "E", "E", "E"],
    ),
    row(
        60,
        "env injection: LD_PRELOAD, PYTHONSTARTUP, NODE_OPTIONS, BASH_ENV, GIT_*, PATH with \".\"",
        ["E", "E", "E", "E"],
    ),
    row(
        61,
        "huge argv/env (>128 KiB arg, >2 MiB total), huge code (100 MiB) on stdin; code with NUL",
        ["E", "E", "E", "E"],
    ),
    row(
        62,
        "clock: TSC/clock_settime, sleep through suspend; time-out uses boottime/monotonic",
        ["E", "E", "E", "E"],
    ),
    row(63, "RLIMIT_CPU dodge by forking; wall time-out while frozen", ["K*", "K", "K", "K"]),
    row(
        64,
        "exit-code spoof: exit 137/124 or self-SIGKILL must not be reported as OOM/time-out",
        ["ok", "ok", "ok", "ok"],
    ),
    row(
        65,
        "zygote/session: run B reads memory, files, RNG stream, sys.modules patches, threads, /dev/shm of run A",
        ["-", "I", "I", "I"],
    ),
    row(
        66,
        "corrupt the pool protocol from inside (write on control fd, exit before ready, never ready)",
        ["L", "L", "L", "L"],
    ),
    row(
        67,
        "two sandboxes under load: limits, names, cgroups and artefacts never mix; 1000 starts leave 0 mounts, cgroups, fds, dirs, zombies",
        ["ok", "ok", "ok", "ok"],
    ),
    row(
        68,
        "Docker: container with --privileged, docker.sock bind, host network, image ENTRYPOINT override, label injection in tool args",
        ["E", "E", "E", "E"],
    ),
    row(
        69,
        "daemon dies / socket hangs / container removed meanwhile / image missing: typed error within time-out",
        ["ok", "ok", "ok", "ok"],
    ),
    row(
        70,
        "degraded host (no userns, no Landlock, no cgroup): level refused or reported as degraded, never silently lower",
        ["ok", "ok", "ok", "ok"],
    ),
    row(
        71,
        "kernel quotas of the user and the host: timers, inotify instances, pipe pages, descriptors in flight, asynchronous requests",
        ["L/A", "L", "L", "L"],
    ),
    row(
        72,
        "memory that no process shows: socket buffers, memory files in flight, detached shared memory, page tables",
        ["L", "L", "L", "L"],
    ),
    row(73, "watch and lock files of the host: inotify, dnotify, flock", ["A", "E/A", "I", "I"]),
    row(74, "core dump helper of the host", ["E", "E", "E", "E"]),
    row(75, "names of the host: directories above what is shown, table of mounts", ["A", "E", "E/A", "E/A"]),
];
