//! The system call policy: a table with a reason per rule.
//!
//! Unlisted calls are allowed, up to the newest reviewed one. The other layers limit the files, processes and
//! identities that they can reach.

use libc::c_long;

use crate::Level;

/// The result of a blocked call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// The call fails with this error.
    Fail(i32),
}

/// The arguments that a rule matches.
///
/// Only their lower 32 bits are compared: the kernel ignores the rest of these arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Test {
    /// Every call.
    Any,
    /// The argument has one of these bits.
    HasBits(u32, u32),
    /// The argument is this value.
    Is(u32, u32),
    /// The argument is none of these values.
    IsNot(u32, &'static [u32]),
    /// The masked argument is this value.
    MaskedIs(u32, u32, u32),
    /// The argument is this value, and another masked one is not the allowed value.
    IsUnless { argument: u32, value: u32, other: u32, mask: u32, allowed: u32 },
    /// Two arguments are these values.
    Both((u32, u32), (u32, u32)),
    /// The argument is larger than this, in all of its 64 bits.
    Above(u32, u32),
}

/// The condition for including a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// Always.
    Always,
    /// The run shares the host's namespaces, so calls that a namespace would contain must be blocked.
    SharedNamespaces,
    /// The run shares the host's processes, and Landlock cannot restrict signals.
    UnscopedSignals,
    /// The run has no egress.
    NoEgress,
    /// The run has an egress proxy in its own network namespace, which is otherwise empty.
    Egress,
    /// A shown directory that no overlay covers may contain sockets of the host.
    Sockets,
    /// The run shares the host's files, and Landlock cannot restrict truncation (before version 3).
    UnguardedTruncation,
    /// No cgroup limits memory, so calls that use memory invisible to the host's polling are blocked.
    WatchedMemory,
}

/// A rule of the policy.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    pub(super) call: c_long,
    pub(super) test: Test,
    pub(super) action: Action,
    pub(super) when: When,
    /// The lowest level with this rule.
    pub(super) since: Level,
    /// For people, and required by a test.
    #[cfg_attr(not(test), expect(dead_code, reason = "documentation of the table, checked by its test"))]
    pub(super) reason: &'static str,
}

/// The newest reviewed call (`file_setattr`, Linux 6.17). Newer ones fail with "not implemented".
pub(super) const LAST_REVIEWED: u32 = 469;

/// Calls that libc's headers lack.
const STATMOUNT: c_long = 457;
const LISTMOUNT: c_long = 458;
const FCHMODAT2: c_long = 452;
const LSM_SET_SELF_ATTR: c_long = 460;
const OPEN_TREE_ATTR: c_long = 467;
/// The headers of musl lack it on aarch64.
pub(super) const KEXEC_FILE_LOAD: c_long = if cfg!(target_arch = "aarch64") { 294 } else { 320 };

const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// The `prctl` options at level `maximum`: names, parent-death signals, dumpability, timers, huge pages,
/// memory names, and capability queries.
const HARMLESS_SETTINGS: &[u32] = &[
    libc::PR_SET_PDEATHSIG as u32,
    libc::PR_GET_PDEATHSIG as u32,
    libc::PR_GET_DUMPABLE as u32,
    libc::PR_SET_DUMPABLE as u32,
    libc::PR_SET_NAME as u32,
    libc::PR_GET_NAME as u32,
    libc::PR_GET_SECCOMP as u32,
    libc::PR_CAPBSET_READ as u32,
    libc::PR_GET_SECUREBITS as u32,
    libc::PR_SET_TIMERSLACK as u32,
    libc::PR_GET_TIMERSLACK as u32,
    libc::PR_SET_CHILD_SUBREAPER as u32,
    libc::PR_GET_CHILD_SUBREAPER as u32,
    libc::PR_SET_NO_NEW_PRIVS as u32,
    libc::PR_GET_NO_NEW_PRIVS as u32,
    libc::PR_SET_THP_DISABLE as u32,
    libc::PR_GET_THP_DISABLE as u32,
    libc::PR_SET_VMA as u32,
];

/// The setuid and setgid bits of a mode.
const SET_IDENTITY: u32 = libc::S_ISUID | libc::S_ISGID;
/// Commands of `fcntl` that libc's headers lack on some machines.
const F_NOTIFY: u32 = 1026;
const F_SETPIPE_SZ: u32 = 1031;
/// The largest System V shared memory segment without a memory cgroup.
///
/// The kernel allows at most 4,096 segments per namespace, and databases use a small one as a lock.
const MAX_SEGMENT: u32 = 64 << 10;
const LEAVES_RIGHTS: &str = "leaves a program with its owner's rights on the host";

const EPERM: Action = Action::Fail(libc::EPERM);
const EACCES: Action = Action::Fail(libc::EACCES);
const ENOSYS: Action = Action::Fail(libc::ENOSYS);
const ENOMEM: Action = Action::Fail(libc::ENOMEM);
/// The call succeeds without effect, as when the kernel clamps a size.
const SUCCEED: Action = Action::Fail(0);

const fn rule(call: c_long, test: Test, action: Action, when: When, reason: &'static str) -> Rule {
    Rule { call, test, action, when, since: Level::Standard, reason }
}

impl Rule {
    /// The rule holds at level `minimal` too.
    const fn always(self) -> Self {
        Self { since: Level::Minimal, ..self }
    }

    /// The rule holds at level `maximum` only.
    const fn at_most(self) -> Self {
        Self { since: Level::Maximum, ..self }
    }
}

/// Blocks a call with any arguments.
const fn block(call: c_long, action: Action, reason: &'static str) -> Rule {
    rule(call, Test::Any, action, When::Always, reason)
}

const SHARED: When = When::SharedNamespaces;
const UNSCOPED: When = When::UnscopedSignals;
const WATCHED: When = When::WatchedMemory;
const TRUNCATION: When = When::UnguardedTruncation;
/// The bits of `open` flags that decide whether Landlock sees a truncation.
const OPEN_MODE: u32 = (libc::O_ACCMODE | libc::O_TRUNC) as u32;
/// A truncation without a right to write, as Landlock sees it.
const SILENT_TRUNCATION: u32 = (libc::O_RDONLY | libc::O_TRUNC) as u32;
const EMPTIES: &str = "empties a file of the user that is not open for writing";

/// The policy of the levels up to `strict`. Each rule holds from its level upward.
pub(super) const POLICY: &[Rule] = &[
    // Kernel interfaces with a long history of exploits that tools do not need.
    block(libc::SYS_io_uring_setup, ENOSYS, "runs system calls that this filter does not see").always(),
    block(libc::SYS_io_uring_enter, ENOSYS, "runs system calls that this filter does not see").always(),
    block(libc::SYS_io_uring_register, ENOSYS, "runs system calls that this filter does not see").always(),
    block(libc::SYS_userfaultfd, ENOSYS, "stops the kernel inside a copy, used to win races").always(),
    block(libc::SYS_perf_event_open, EPERM, "large attack surface; sees other processes").always(),
    block(libc::SYS_bpf, EPERM, "loads programs into the kernel").always(),
    block(libc::SYS_add_key, EPERM, "key rings are not confined by namespaces"),
    block(
        libc::SYS_request_key,
        EPERM,
        "key rings are not confined by namespaces; starts a helper on the host",
    ),
    block(libc::SYS_keyctl, EPERM, "key rings are not confined by namespaces"),
    block(libc::SYS_memfd_secret, ENOSYS, "memory that the host cannot inspect"),
    block(libc::SYS_remap_file_pages, ENOSYS, "obsolete; emulated by delicate code"),
    block(libc::SYS_fanotify_init, EPERM, "watches whole file systems"),
    block(libc::SYS_fanotify_mark, EPERM, "watches whole file systems"),
    block(libc::SYS_lookup_dcookie, EPERM, "profiling interface"),
    block(libc::SYS_quotactl, EPERM, "administers file systems").always(),
    block(libc::SYS_quotactl_fd, EPERM, "administers file systems").always(),
    block(libc::SYS_nfsservctl, ENOSYS, "obsolete"),
    // Quotas that the run would share with its user or the host.
    block(libc::SYS_io_setup, ENOSYS, "takes from `fs.aio-max-nr`, which the whole host shares"),
    rule(
        libc::SYS_fcntl,
        Test::Is(1, F_SETPIPE_SZ),
        EPERM,
        When::Always,
        "takes from the pages that all pipes of the user share",
    ),
    rule(libc::SYS_fcntl, Test::Is(1, F_NOTIFY), EPERM, When::Always, "obsolete; watches directories"),
    rule(
        libc::SYS_inotify_init1,
        Test::Any,
        ENOSYS,
        SHARED,
        "watches files of the host; takes the user's quota",
    ),
    // Other processes.
    block(libc::SYS_ptrace, EPERM, "reads and changes other processes"),
    block(libc::SYS_process_vm_readv, EPERM, "reads other processes"),
    block(libc::SYS_process_vm_writev, EPERM, "changes other processes"),
    block(libc::SYS_process_madvise, EPERM, "changes other processes"),
    block(libc::SYS_process_mrelease, EPERM, "changes other processes"),
    block(libc::SYS_pidfd_getfd, EPERM, "takes descriptors of other processes"),
    block(libc::SYS_kcmp, EPERM, "reveals kernel pointers' order"),
    block(libc::SYS_move_pages, EPERM, "moves memory of other processes"),
    block(libc::SYS_migrate_pages, EPERM, "moves memory of other processes"),
    rule(libc::SYS_prlimit64, Test::IsNot(0, &[0]), EPERM, When::Always, "changes limits of other processes")
        .always(),
    // Namespaces and mounts.
    rule(
        libc::SYS_clone,
        Test::HasBits(0, NEW_NAMESPACES),
        EPERM,
        When::Always,
        "a user namespace gives capabilities",
    )
    .always(),
    block(
        libc::SYS_clone3,
        ENOSYS,
        "its flags are in memory, where a filter cannot see them; libc then uses clone",
    )
    .always(),
    block(libc::SYS_unshare, EPERM, "a user namespace gives capabilities").always(),
    block(libc::SYS_setns, EPERM, "enters other namespaces").always(),
    block(libc::SYS_mount, EPERM, "changes what paths mean").always(),
    block(libc::SYS_umount2, EPERM, "uncovers what a mount hides").always(),
    block(libc::SYS_pivot_root, EPERM, "changes what paths mean").always(),
    block(libc::SYS_chroot, EPERM, "changes what paths mean").always(),
    block(libc::SYS_mount_setattr, EPERM, "makes read-only mounts writable").always(),
    block(libc::SYS_open_tree, EPERM, "copies mounts").always(),
    block(OPEN_TREE_ATTR, EPERM, "copies mounts").always(),
    block(libc::SYS_move_mount, EPERM, "changes what paths mean").always(),
    block(libc::SYS_fsopen, EPERM, "makes file systems").always(),
    block(libc::SYS_fsconfig, EPERM, "makes file systems").always(),
    block(libc::SYS_fsmount, EPERM, "makes file systems").always(),
    block(libc::SYS_fspick, EPERM, "changes file systems").always(),
    block(STATMOUNT, EPERM, "describes the host's mounts"),
    block(LISTMOUNT, EPERM, "describes the host's mounts"),
    block(libc::SYS_name_to_handle_at, EPERM, "first half of opening files by number, round every path rule"),
    block(libc::SYS_open_by_handle_at, EPERM, "opens files by number, round every path rule").always(),
    // The machine.
    block(libc::SYS_kexec_load, EPERM, "replaces the kernel").always(),
    block(KEXEC_FILE_LOAD, EPERM, "replaces the kernel").always(),
    block(libc::SYS_init_module, EPERM, "loads code into the kernel").always(),
    block(libc::SYS_finit_module, EPERM, "loads code into the kernel").always(),
    block(libc::SYS_delete_module, EPERM, "unloads code from the kernel").always(),
    block(libc::SYS_reboot, EPERM, "stops the machine").always(),
    block(libc::SYS_swapon, EPERM, "administers memory").always(),
    block(libc::SYS_swapoff, EPERM, "administers memory").always(),
    block(libc::SYS_acct, EPERM, "writes a file of the host at every exit").always(),
    block(libc::SYS_syslog, EPERM, "reads the kernel's log"),
    block(libc::SYS_vhangup, EPERM, "disturbs a terminal"),
    block(libc::SYS_sethostname, EPERM, "changes the host name"),
    block(libc::SYS_setdomainname, EPERM, "changes the host name"),
    block(libc::SYS_settimeofday, EPERM, "changes the clock"),
    block(libc::SYS_clock_settime, EPERM, "changes the clock"),
    block(libc::SYS_clock_adjtime, EPERM, "changes the clock"),
    block(libc::SYS_adjtimex, EPERM, "changes the clock"),
    block(LSM_SET_SELF_ATTR, EPERM, "changes the security module's label"),
    rule(
        libc::SYS_personality,
        Test::IsNot(0, &[0, u32::MAX]),
        EPERM,
        When::Always,
        "switches address randomisation off",
    ),
    rule(
        libc::SYS_prctl,
        Test::IsNot(0, HARMLESS_SETTINGS),
        EPERM,
        When::Always,
        "settings of a process that no usual program changes",
    )
    .at_most(),
    // A setuid program in a host directory would run with its owner's rights on the host. Mounts inside
    // ignore the bit; the host's own mounts do not.
    rule(libc::SYS_fchmod, Test::HasBits(1, SET_IDENTITY), EPERM, When::Always, LEAVES_RIGHTS),
    rule(libc::SYS_fchmodat, Test::HasBits(2, SET_IDENTITY), EPERM, When::Always, LEAVES_RIGHTS),
    rule(FCHMODAT2, Test::HasBits(2, SET_IDENTITY), EPERM, When::Always, LEAVES_RIGHTS),
    rule(libc::SYS_openat, Test::HasBits(3, SET_IDENTITY), EPERM, When::Always, LEAVES_RIGHTS),
    rule(libc::SYS_mkdirat, Test::HasBits(2, SET_IDENTITY), EPERM, When::Always, LEAVES_RIGHTS),
    rule(libc::SYS_mknodat, Test::HasBits(2, SET_IDENTITY), EPERM, When::Always, LEAVES_RIGHTS),
    block(
        libc::SYS_openat2,
        ENOSYS,
        "its mode is in memory, where a filter cannot see a set-user-id bit; programs then use openat",
    ),
    // Terminals: a process that shares one could type into it.
    rule(libc::SYS_ioctl, Test::Is(1, libc::TIOCSTI as u32), EPERM, When::Always, "types into the terminal")
        .always(),
    rule(libc::SYS_ioctl, Test::Is(1, 0x541C), EPERM, When::Always, "TIOCLINUX types into the console")
        .always(),
    rule(libc::SYS_ioctl, Test::Is(1, 0x5423), EPERM, When::Always, "TIOCSETD loads kernel modules").always(),
    rule(
        libc::SYS_socket,
        Test::Is(0, libc::AF_VSOCK as u32),
        EACCES,
        When::Always,
        "reaches the machine that runs this virtual one; in no namespace",
    )
    .always(),
    // Network: none. Vsock and others ignore namespaces, and Landlock handles only TCP.
    rule(
        libc::SYS_socket,
        Test::IsNot(0, &[libc::AF_UNIX as u32]),
        EACCES,
        When::NoEgress,
        "no network; only unix sockets",
    ),
    rule(
        libc::SYS_socket,
        Test::IsNot(0, &[libc::AF_UNIX as u32, libc::AF_INET as u32]),
        EACCES,
        When::Egress,
        "only unix sockets, and TCP to the proxy",
    ),
    rule(
        libc::SYS_socket,
        Test::IsUnless {
            argument: 0,
            value: libc::AF_INET as u32,
            other: 1,
            mask: 0xf,
            allowed: libc::SOCK_STREAM as u32,
        },
        EACCES,
        When::Egress,
        "the proxy speaks TCP; no UDP, no raw packets",
    ),
    rule(
        libc::SYS_socket,
        Test::IsNot(2, &[0, libc::IPPROTO_TCP as u32]),
        EACCES,
        When::Egress,
        "streams other than TCP, which Landlock does not know",
    ),
    rule(
        libc::SYS_socketpair,
        Test::IsNot(0, &[libc::AF_UNIX as u32]),
        EACCES,
        When::Always,
        "only unix sockets",
    ),
    rule(
        libc::SYS_socket,
        Test::Is(0, libc::AF_UNIX as u32),
        EACCES,
        When::Sockets,
        "could reach the host's unix sockets in a shown directory",
    ),
    rule(
        libc::SYS_socketpair,
        Test::MaskedIs(1, 0xf, libc::SOCK_DGRAM as u32),
        EACCES,
        When::Sockets,
        "can send to any path",
    ),
    rule(
        libc::SYS_socketpair,
        Test::MaskedIs(1, 0xf, libc::SOCK_RAW as u32),
        EACCES,
        When::Sockets,
        "is a datagram socket",
    ),
    // What namespaces would contain.
    rule(libc::SYS_socket, Test::Any, EACCES, SHARED, "could reach the host's unix sockets by path"),
    rule(libc::SYS_connect, Test::Any, EACCES, SHARED, "could reach the host's unix sockets by path"),
    rule(
        libc::SYS_socketpair,
        Test::MaskedIs(1, 0xf, libc::SOCK_DGRAM as u32),
        EACCES,
        SHARED,
        "can send to any path",
    ),
    rule(
        libc::SYS_socketpair,
        Test::MaskedIs(1, 0xf, libc::SOCK_RAW as u32),
        EACCES,
        SHARED,
        "is a datagram socket",
    ),
    rule(libc::SYS_shmget, Test::Any, EPERM, SHARED, "shared memory of the host's programs"),
    rule(libc::SYS_shmat, Test::Any, EPERM, SHARED, "shared memory of the host's programs"),
    rule(libc::SYS_shmctl, Test::Any, EPERM, SHARED, "shared memory of the host's programs"),
    rule(libc::SYS_semget, Test::Any, EPERM, SHARED, "semaphores of the host's programs"),
    rule(libc::SYS_semop, Test::Any, EPERM, SHARED, "semaphores of the host's programs"),
    rule(libc::SYS_semtimedop, Test::Any, EPERM, SHARED, "semaphores of the host's programs"),
    rule(libc::SYS_semctl, Test::Any, EPERM, SHARED, "semaphores of the host's programs"),
    rule(libc::SYS_msgget, Test::Any, EPERM, SHARED, "message queues of the host's programs"),
    rule(libc::SYS_msgsnd, Test::Any, EPERM, SHARED, "message queues of the host's programs"),
    rule(libc::SYS_msgrcv, Test::Any, EPERM, SHARED, "message queues of the host's programs"),
    rule(libc::SYS_msgctl, Test::Any, EPERM, SHARED, "message queues of the host's programs"),
    rule(libc::SYS_mq_open, Test::Any, EPERM, SHARED, "message queues of the host's programs"),
    rule(libc::SYS_mq_unlink, Test::Any, EPERM, SHARED, "message queues of the host's programs"),
    rule(libc::SYS_setpriority, Test::Any, EPERM, SHARED, "changes other processes of the same user"),
    rule(libc::SYS_ioprio_set, Test::Any, EPERM, SHARED, "changes other processes of the same user"),
    rule(
        libc::SYS_sched_setscheduler,
        Test::IsNot(0, &[0]),
        EPERM,
        SHARED,
        "changes other processes of the same user",
    ),
    rule(
        libc::SYS_sched_setparam,
        Test::IsNot(0, &[0]),
        EPERM,
        SHARED,
        "changes other processes of the same user",
    ),
    rule(
        libc::SYS_sched_setattr,
        Test::IsNot(0, &[0]),
        EPERM,
        SHARED,
        "changes other processes of the same user",
    ),
    rule(
        libc::SYS_sched_setaffinity,
        Test::IsNot(0, &[0]),
        EPERM,
        SHARED,
        "changes other processes of the same user",
    ),
    // What the Landlock scope would block.
    rule(libc::SYS_kill, Test::Any, EPERM, UNSCOPED, "signals the user's other processes"),
    rule(libc::SYS_tkill, Test::Any, EPERM, UNSCOPED, "signals the user's other processes"),
    rule(libc::SYS_tgkill, Test::Any, EPERM, UNSCOPED, "signals the user's other processes"),
    rule(libc::SYS_rt_sigqueueinfo, Test::Any, EPERM, UNSCOPED, "signals the user's other processes"),
    rule(libc::SYS_rt_tgsigqueueinfo, Test::Any, EPERM, UNSCOPED, "signals the user's other processes"),
    rule(libc::SYS_pidfd_send_signal, Test::Any, EPERM, UNSCOPED, "signals the user's other processes"),
    rule(
        libc::SYS_fcntl,
        Test::Is(1, libc::F_SETOWN as u32),
        EPERM,
        UNSCOPED,
        "makes the kernel send signals",
    ),
    rule(libc::SYS_fcntl, Test::Is(1, 15), EPERM, UNSCOPED, "F_SETOWN_EX makes the kernel send signals"),
    rule(libc::SYS_ioctl, Test::Is(1, 0x8901), EPERM, UNSCOPED, "FIOSETOWN makes the kernel send signals"),
    rule(libc::SYS_ioctl, Test::Is(1, 0x8902), EPERM, UNSCOPED, "SIOCSPGRP makes the kernel send signals"),
    // What newer versions of Landlock restrict.
    rule(libc::SYS_truncate, Test::Any, EACCES, TRUNCATION, EMPTIES),
    rule(libc::SYS_openat, Test::MaskedIs(2, OPEN_MODE, SILENT_TRUNCATION), EACCES, TRUNCATION, EMPTIES),
    rule(libc::SYS_openat, Test::MaskedIs(2, OPEN_MODE, OPEN_MODE), EACCES, TRUNCATION, EMPTIES),
    // What a memory cgroup would count.
    rule(
        libc::SYS_memfd_create,
        Test::Any,
        ENOSYS,
        WATCHED,
        "memory that nothing counts while it is in flight",
    ),
    rule(
        libc::SYS_shmget,
        Test::Above(1, MAX_SEGMENT),
        ENOMEM,
        WATCHED,
        "memory that nothing counts while detached",
    ),
    rule(libc::SYS_semget, Test::Any, ENOSYS, WATCHED, "kernel memory that nothing counts"),
    rule(libc::SYS_msgget, Test::Any, ENOSYS, WATCHED, "kernel memory that nothing counts"),
    rule(
        libc::SYS_setsockopt,
        Test::Both((1, libc::SOL_SOCKET as u32), (2, libc::SO_SNDBUF as u32)),
        SUCCEED,
        WATCHED,
        "the watch counts sockets by the default size of their buffers",
    )
    .always(),
];

/// Calls of this machine only.
#[cfg(target_arch = "x86_64")]
pub(super) const MACHINE: &[Rule] = &[
    rule(libc::SYS_chmod, Test::HasBits(1, SET_IDENTITY), EPERM, When::Always, LEAVES_RIGHTS),
    rule(libc::SYS_creat, Test::HasBits(1, SET_IDENTITY), EPERM, When::Always, LEAVES_RIGHTS),
    rule(libc::SYS_open, Test::HasBits(2, SET_IDENTITY), EPERM, When::Always, LEAVES_RIGHTS),
    rule(libc::SYS_open, Test::MaskedIs(1, OPEN_MODE, SILENT_TRUNCATION), EACCES, TRUNCATION, EMPTIES),
    rule(libc::SYS_open, Test::MaskedIs(1, OPEN_MODE, OPEN_MODE), EACCES, TRUNCATION, EMPTIES),
    rule(libc::SYS_mkdir, Test::HasBits(1, SET_IDENTITY), EPERM, When::Always, LEAVES_RIGHTS),
    rule(libc::SYS_mknod, Test::HasBits(1, SET_IDENTITY), EPERM, When::Always, LEAVES_RIGHTS),
    rule(
        libc::SYS_inotify_init,
        Test::Any,
        ENOSYS,
        SHARED,
        "watches files of the host; takes the user's quota",
    ),
    block(libc::SYS_modify_ldt, EPERM, "segment descriptors; long history of exploits"),
    block(libc::SYS_iopl, EPERM, "input and output ports").always(),
    block(libc::SYS_ioperm, EPERM, "input and output ports").always(),
    block(libc::SYS_uselib, ENOSYS, "obsolete"),
    block(libc::SYS_ustat, ENOSYS, "obsolete"),
    block(libc::SYS_sysfs, ENOSYS, "obsolete"),
    block(libc::SYS__sysctl, ENOSYS, "obsolete"),
];
/// Calls of this machine only.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const MACHINE: &[Rule] = &[];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_a_reason_and_is_reachable() {
        for rule in POLICY.iter().chain(MACHINE) {
            assert!(rule.reason.len() > 7, "{rule:?}");
            assert!((rule.call as u32) <= LAST_REVIEWED, "{rule:?}");
        }
    }
}
