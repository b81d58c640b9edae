//! The treatment of every system call at level `maximum`: allowed, answered with an error, or the end of the
//! run.
//!
//! Calls in no group fail with "not implemented".

use libc::c_long;

/// The treatment of a group of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Treatment {
    /// The call is performed, unless an argument rule of the policy blocks it.
    Allow,
    /// The call fails with this error: harmless programs try it and continue without.
    Answer(i32),
    /// The call ends the run: no program needs it.
    End,
}

use Treatment::{Allow, Answer, End};

/// System calls with the same treatment and reason.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    pub(super) treatment: Treatment,
    /// For people; printed when a call ends a run.
    pub(super) reason: &'static str,
    /// The calls by number and by libc's name.
    pub(super) calls: &'static [(c_long, &'static str)],
}

const fn group(
    treatment: Treatment,
    reason: &'static str,
    calls: &'static [(c_long, &'static str)],
) -> Group {
    Group { treatment, reason, calls }
}

/// Call numbers from libc's headers, and those that they lack.
#[expect(non_upper_case_globals, reason = "named as libc names the others")]
mod number {
    pub(super) use libc::*;

    // The headers of musl lack it on aarch64.
    pub(super) const SYS_kexec_file_load: c_long = super::super::policy::KEXEC_FILE_LOAD;
    pub(super) const SYS_cachestat: c_long = 451;
    pub(super) const SYS_map_shadow_stack: c_long = 453;
    pub(super) const SYS_futex_wake: c_long = 454;
    pub(super) const SYS_futex_wait: c_long = 455;
    pub(super) const SYS_futex_requeue: c_long = 456;
    pub(super) const SYS_statmount: c_long = 457;
    pub(super) const SYS_listmount: c_long = 458;
    pub(super) const SYS_lsm_get_self_attr: c_long = 459;
    pub(super) const SYS_lsm_set_self_attr: c_long = 460;
    pub(super) const SYS_lsm_list_modules: c_long = 461;
    pub(super) const SYS_setxattrat: c_long = 463;
    pub(super) const SYS_getxattrat: c_long = 464;
    pub(super) const SYS_listxattrat: c_long = 465;
    pub(super) const SYS_removexattrat: c_long = 466;
    pub(super) const SYS_open_tree_attr: c_long = 467;
    pub(super) const SYS_file_getattr: c_long = 468;
    pub(super) const SYS_file_setattr: c_long = 469;
    #[cfg(target_arch = "x86_64")]
    pub(super) const SYS_create_module: c_long = 174;
    #[cfg(target_arch = "x86_64")]
    pub(super) const SYS_get_kernel_syms: c_long = 177;
    #[cfg(target_arch = "x86_64")]
    pub(super) const SYS_query_module: c_long = 178;
    #[cfg(target_arch = "x86_64")]
    pub(super) const SYS_io_pgetevents: c_long = 333;
}

/// Numbers and names of calls.
macro_rules! calls {
    ($($name:ident)*) => { &[$((number::$name, stringify!($name))),*] };
}

/// The calls of every architecture.
const EVERYWHERE: &[Group] = &[
    group(
        Allow,
        "reads, writes and arranges descriptors that are open",
        calls! {
            SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv
            SYS_pwritev SYS_preadv2 SYS_pwritev2 SYS_lseek SYS_close SYS_close_range SYS_dup
            SYS_dup3 SYS_fcntl SYS_flock SYS_fsync SYS_fdatasync SYS_sync_file_range
            SYS_ftruncate SYS_fallocate SYS_fadvise64 SYS_readahead SYS_copy_file_range
            SYS_sendfile SYS_pipe2 SYS_getdents64 SYS_fstat SYS_fstatfs SYS_fchdir SYS_fchmod
            SYS_fchown
        },
    ),
    group(
        Allow,
        "terminals and sizes of pipes; what types into a terminal is refused by its own rules",
        calls! {
            SYS_ioctl
        },
    ),
    group(
        Allow,
        "opens, makes and removes files, of which the private root, its mounts and Landlock say which can be reached",
        calls! {
            SYS_openat SYS_newfstatat SYS_statx SYS_faccessat SYS_faccessat2
            SYS_readlinkat SYS_mkdirat SYS_unlinkat SYS_renameat SYS_renameat2 SYS_linkat
            SYS_symlinkat SYS_truncate SYS_statfs SYS_getcwd SYS_chdir SYS_umask
        },
    ),
    group(
        Allow,
        "changes modes, owners and times of files of the program itself: it has no capabilities for others",
        calls! {
            SYS_fchmodat SYS_fchownat SYS_utimensat
        },
    ),
    group(
        Allow,
        "named pipes; device files need a capability and are refused by Landlock",
        calls! {
            SYS_mknodat
        },
    ),
    group(
        Allow,
        "reads labels of files, as `ls` and `cp` do",
        calls! {
            SYS_getxattr SYS_lgetxattr SYS_fgetxattr SYS_listxattr SYS_llistxattr SYS_flistxattr
        },
    ),
    group(
        Answer(libc::ENOSYS),
        "watches files, out of a small number that the user has; programs look again from time to time",
        calls! {
            SYS_inotify_init1 SYS_inotify_add_watch SYS_inotify_rm_watch
        },
    ),
    group(
        Allow,
        "memory of the process itself, within the limit",
        calls! {
            SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_madvise SYS_brk SYS_mincore
            SYS_msync SYS_mlock SYS_mlock2 SYS_munlock SYS_mlockall SYS_munlockall SYS_mseal
            SYS_membarrier
        },
    ),
    group(
        Allow,
        "starts, names and collects processes and threads; new namespaces are refused by their own rule",
        calls! {
            SYS_clone SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_wait4 SYS_waitid
            SYS_set_tid_address SYS_gettid SYS_getpid SYS_getppid SYS_getpgid SYS_setpgid
            SYS_getsid SYS_setsid SYS_pidfd_open
        },
    ),
    group(
        Allow,
        "the thread library",
        calls! {
            SYS_futex SYS_futex_waitv SYS_set_robust_list SYS_get_robust_list SYS_rseq
            SYS_restart_syscall SYS_sched_yield
        },
    ),
    group(
        Allow,
        "settings of the process itself, of which its own rule allows the harmless ones",
        calls! {
            SYS_prctl
        },
    ),
    group(
        Allow,
        "switches of the kernel interface, of which its own rule allows none that weakens the process",
        calls! {
            SYS_personality
        },
    ),
    group(
        Allow,
        "signals inside the process namespace",
        calls! {
            SYS_kill SYS_tkill SYS_tgkill SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn
            SYS_rt_sigpending SYS_rt_sigsuspend SYS_rt_sigtimedwait SYS_rt_sigqueueinfo
            SYS_rt_tgsigqueueinfo SYS_pidfd_send_signal SYS_sigaltstack SYS_signalfd4
        },
    ),
    group(
        Allow,
        "asks who the process is, and takes identities that it has already",
        calls! {
            SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getresuid SYS_getresgid
            SYS_getgroups SYS_setuid SYS_setgid SYS_setreuid SYS_setregid SYS_setresuid
            SYS_setresgid SYS_setfsuid SYS_setfsgid SYS_capget
        },
    ),
    group(
        Allow,
        "reads clocks, sleeps and sets timers",
        calls! {
            SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_nanosleep
            SYS_gettimeofday SYS_times SYS_timer_create SYS_timer_settime SYS_timer_gettime
            SYS_timer_getoverrun SYS_timer_delete SYS_timerfd_create SYS_timerfd_settime
            SYS_timerfd_gettime SYS_getitimer SYS_setitimer
        },
    ),
    group(
        Allow,
        "waits for descriptors",
        calls! {
            SYS_ppoll SYS_pselect6 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait
            SYS_epoll_pwait2 SYS_eventfd2
        },
    ),
    group(
        Allow,
        "facts about the system and use of resources; limits can only be lowered",
        calls! {
            SYS_uname SYS_sysinfo SYS_getrusage SYS_getrlimit SYS_setrlimit SYS_prlimit64
            SYS_getrandom SYS_getcpu SYS_getpriority SYS_setpriority SYS_sched_getaffinity
            SYS_sched_getscheduler SYS_sched_getparam SYS_sched_getattr
            SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_sched_rr_get_interval
        },
    ),
    group(
        Allow,
        "unix sockets inside the run, and the way to the proxy where there is one; other families are refused by their own rule",
        calls! {
            SYS_socket SYS_socketpair SYS_connect SYS_bind SYS_listen SYS_accept SYS_accept4
            SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_sendmmsg SYS_recvmmsg
            SYS_shutdown SYS_getsockname SYS_getpeername SYS_setsockopt SYS_getsockopt
        },
    ),
    group(
        Answer(libc::ENOSYS),
        "its flags are in memory, where a filter cannot see them; libc then uses clone",
        calls! {
            SYS_clone3
        },
    ),
    group(
        Answer(libc::ENOSYS),
        "its mode is in memory, where a filter cannot see a set-user-id bit; programs then use openat",
        calls! {
            SYS_openat2
        },
    ),
    group(
        Answer(libc::ENOSYS),
        "runs system calls that this filter does not see; runtimes ask for it and do without",
        calls! {
            SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register
        },
    ),
    group(
        Answer(libc::ENOSYS),
        "moves pages between pipes without a copy, a source of holes; programs copy instead",
        calls! {
            SYS_splice SYS_tee SYS_vmsplice
        },
    ),
    group(
        Answer(libc::ENOSYS),
        "placement of memory on large machines; libraries do without",
        calls! {
            SYS_mbind SYS_get_mempolicy SYS_set_mempolicy SYS_set_mempolicy_home_node
        },
    ),
    group(
        Answer(libc::ENOSYS),
        "protection keys and shadow stacks, which runtimes ask for and do without",
        calls! {
            SYS_pkey_alloc SYS_pkey_free SYS_pkey_mprotect SYS_map_shadow_stack
        },
    ),
    group(
        Answer(libc::ENOSYS),
        "newer forms of calls that libc falls back from",
        calls! {
            SYS_futex_wake SYS_futex_wait SYS_futex_requeue SYS_cachestat SYS_getxattrat
            SYS_listxattrat SYS_setxattrat SYS_removexattrat SYS_file_getattr SYS_file_setattr
            SYS_lsm_get_self_attr SYS_lsm_list_modules
        },
    ),
    group(
        Answer(libc::EPERM),
        "memory that can be executed without a file",
        calls! {
            SYS_memfd_create
        },
    ),
    group(
        Answer(libc::ENOSYS),
        "memory that the host cannot inspect",
        calls! {
            SYS_memfd_secret
        },
    ),
    group(
        Answer(libc::ENOSYS),
        "obsolete; emulated by delicate code",
        calls! {
            SYS_remap_file_pages
        },
    ),
    group(
        Answer(libc::EOPNOTSUPP),
        "labels of files, kept in kernel memory; copying programs do without",
        calls! {
            SYS_setxattr SYS_lsetxattr SYS_fsetxattr SYS_removexattr SYS_lremovexattr
            SYS_fremovexattr
        },
    ),
    group(
        Answer(libc::EPERM),
        "first half of opening files by number, round every path rule",
        calls! {
            SYS_name_to_handle_at
        },
    ),
    group(
        Answer(libc::ENOSYS),
        "message queues, semaphores and shared memory of System V: old code with its own limits",
        calls! {
            SYS_shmget SYS_shmat SYS_shmctl SYS_shmdt SYS_semget SYS_semop SYS_semtimedop
            SYS_semctl SYS_msgget SYS_msgsnd SYS_msgrcv SYS_msgctl
        },
    ),
    group(
        Answer(libc::ENOSYS),
        "message queues of POSIX: old code with its own limits",
        calls! {
            SYS_mq_open SYS_mq_unlink SYS_mq_timedsend SYS_mq_timedreceive SYS_mq_notify
            SYS_mq_getsetattr
        },
    ),
    group(
        Answer(libc::ENOSYS),
        "the older asynchronous input and output",
        calls! {
            SYS_io_setup SYS_io_destroy SYS_io_submit SYS_io_cancel SYS_io_getevents
        },
    ),
    group(
        Answer(libc::ENOSYS),
        "a sandbox inside this one; a filter of the program could hide its calls from the host",
        calls! {
            SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self
        },
    ),
    group(
        Answer(libc::EPERM),
        "a sandbox inside this one; a filter of the program could hide its calls from the host",
        calls! {
            SYS_seccomp
        },
    ),
    group(
        Answer(libc::EPERM),
        "changes how the kernel schedules, for itself and others",
        calls! {
            SYS_sched_setscheduler SYS_sched_setparam SYS_sched_setattr SYS_sched_setaffinity
            SYS_ioprio_set SYS_ioprio_get
        },
    ),
    group(
        Answer(libc::EPERM),
        "identities and rights that the process has not",
        calls! {
            SYS_setgroups SYS_capset
        },
    ),
    group(
        Answer(libc::EPERM),
        "changes the clock",
        calls! {
            SYS_settimeofday SYS_clock_settime SYS_clock_adjtime SYS_adjtimex
        },
    ),
    group(
        Answer(libc::ENOSYS),
        "writes all file systems of the host to disk",
        calls! {
            SYS_sync SYS_syncfs
        },
    ),
    group(
        Answer(libc::EPERM),
        "describes the host's mounts",
        calls! {
            SYS_statmount SYS_listmount
        },
    ),
    group(
        Answer(libc::ENOSYS),
        "no kernel of today has it",
        calls! {
            SYS_nfsservctl SYS_lookup_dcookie
        },
    ),
    group(
        End,
        "reads or changes other processes",
        calls! {
            SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_process_madvise
            SYS_process_mrelease SYS_pidfd_getfd SYS_kcmp SYS_move_pages SYS_migrate_pages
        },
    ),
    group(
        End,
        "makes or enters namespaces",
        calls! {
            SYS_unshare SYS_setns
        },
    ),
    group(
        End,
        "changes what paths mean",
        calls! {
            SYS_mount SYS_umount2 SYS_pivot_root SYS_chroot SYS_mount_setattr SYS_open_tree
            SYS_open_tree_attr SYS_move_mount SYS_fsopen SYS_fsconfig SYS_fsmount SYS_fspick
        },
    ),
    group(
        End,
        "opens files by number, round every path rule",
        calls! {
            SYS_open_by_handle_at
        },
    ),
    group(
        End,
        "loads code into the kernel or replaces it",
        calls! {
            SYS_bpf SYS_init_module SYS_finit_module SYS_delete_module SYS_kexec_load
            SYS_kexec_file_load
        },
    ),
    group(
        End,
        "a kernel interface with a long history of exploits",
        calls! {
            SYS_userfaultfd SYS_perf_event_open
        },
    ),
    group(
        End,
        "key rings are not confined by namespaces",
        calls! {
            SYS_add_key SYS_request_key SYS_keyctl
        },
    ),
    group(
        End,
        "watches whole file systems",
        calls! {
            SYS_fanotify_init SYS_fanotify_mark
        },
    ),
    group(
        End,
        "administers the machine",
        calls! {
            SYS_reboot SYS_swapon SYS_swapoff SYS_acct SYS_syslog SYS_vhangup SYS_sethostname
            SYS_setdomainname SYS_quotactl SYS_quotactl_fd SYS_lsm_set_self_attr
        },
    ),
];

/// The calls of this architecture only.
#[cfg(target_arch = "x86_64")]
const MACHINE: &[Group] = &[
    group(
        Allow,
        "reads, writes and arranges descriptors that are open",
        calls! {
            SYS_dup2 SYS_pipe SYS_getdents
        },
    ),
    group(
        Allow,
        "opens, makes and removes files, of which the private root, its mounts and Landlock say which can be reached",
        calls! {
            SYS_open SYS_creat SYS_stat SYS_lstat SYS_access SYS_readlink SYS_mkdir SYS_rmdir
            SYS_unlink SYS_rename SYS_link SYS_symlink
        },
    ),
    group(
        Allow,
        "changes modes, owners and times of files of the program itself: it has no capabilities for others",
        calls! {
            SYS_chmod SYS_fchmodat2 SYS_chown SYS_lchown SYS_utime SYS_utimes SYS_futimesat
        },
    ),
    group(
        Allow,
        "named pipes; device files need a capability and are refused by Landlock",
        calls! {
            SYS_mknod
        },
    ),
    group(
        Answer(libc::ENOSYS),
        "watches files, out of a small number that the user has; programs look again from time to time",
        calls! {
            SYS_inotify_init
        },
    ),
    group(
        Allow,
        "starts, names and collects processes and threads; new namespaces are refused by their own rule",
        calls! {
            SYS_fork SYS_vfork SYS_getpgrp
        },
    ),
    group(
        Allow,
        "the thread library",
        calls! {
            SYS_arch_prctl
        },
    ),
    group(
        Allow,
        "signals inside the process namespace",
        calls! {
            SYS_pause SYS_signalfd
        },
    ),
    group(
        Allow,
        "reads clocks, sleeps and sets timers",
        calls! {
            SYS_time SYS_alarm
        },
    ),
    group(
        Allow,
        "waits for descriptors",
        calls! {
            SYS_poll SYS_select SYS_epoll_create SYS_epoll_wait SYS_eventfd
        },
    ),
    group(
        Answer(libc::ENOSYS),
        "the older asynchronous input and output",
        calls! {
            SYS_io_pgetevents
        },
    ),
    group(
        Answer(libc::ENOSYS),
        "no kernel of today has it",
        calls! {
            SYS_uselib SYS_ustat SYS_sysfs SYS__sysctl SYS_create_module SYS_get_kernel_syms
            SYS_query_module SYS_getpmsg SYS_putpmsg SYS_afs_syscall SYS_tuxcall SYS_security
            SYS_vserver SYS_epoll_ctl_old SYS_epoll_wait_old SYS_set_thread_area
            SYS_get_thread_area
        },
    ),
    group(
        End,
        "a kernel interface with a long history of exploits",
        calls! {
            SYS_modify_ldt
        },
    ),
    group(
        End,
        "input and output ports",
        calls! {
            SYS_iopl SYS_ioperm
        },
    ),
];
/// The calls of this architecture only.
#[cfg(not(target_arch = "x86_64"))]
const MACHINE: &[Group] = &[];

/// All groups.
pub(super) fn groups() -> impl Iterator<Item = &'static Group> {
    EVERYWHERE.iter().chain(MACHINE)
}

/// The name and group of a call.
pub(super) fn of_number(number: i32) -> Option<(&'static str, &'static Group)> {
    groups().find_map(|group| {
        let (_, name) = group.calls.iter().find(|(call, _)| *call == c_long::from(number))?;
        Some((name.strip_prefix("SYS_").unwrap_or(name), group))
    })
}

/// The message about a call that ended a run.
pub(super) fn rule(number: i32) -> String {
    match of_number(number) {
        Some((name, group)) => format!("the system call `{name}` ({})", group.reason),
        None => format!("the system call with number {number} (unknown)"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::policy::LAST_REVIEWED;
    use super::*;

    #[test]
    fn every_reviewed_call_is_in_one_group_with_a_reason() {
        let mut seen = std::collections::BTreeMap::new();
        for group in groups() {
            assert!(group.reason.len() > 7 && !group.calls.is_empty(), "{group:?}");
            for (call, name) in group.calls {
                assert!((*call as u32) <= LAST_REVIEWED, "{name}");
                assert_eq!(seen.insert(*call, *name), None, "{name} is listed twice");
            }
        }
        if cfg!(target_arch = "x86_64") {
            // No program uses the numbers between.
            let numbers = (0..335).chain(424..=c_long::from(LAST_REVIEWED));
            let missing: Vec<c_long> = numbers.filter(|number| !seen.contains_key(number)).collect();
            assert!(missing.is_empty(), "in no group: {missing:?}");
        }
    }

    #[test]
    fn calls_that_lower_levels_block_are_not_allowed() {
        use super::super::policy::{MACHINE, POLICY, Test, When};
        for rule in POLICY.iter().chain(MACHINE) {
            if rule.test == Test::Any && rule.when == When::Always {
                let (name, group) = of_number(rule.call as i32).unwrap();
                assert_ne!(group.treatment, Allow, "{name}");
            }
        }
    }

    #[test]
    fn a_call_is_named_with_its_reason() {
        assert_eq!(rule(libc::SYS_chroot as i32), "the system call `chroot` (changes what paths mean)");
        assert_eq!(rule(9999), "the system call with number 9999 (unknown)");
    }
}
