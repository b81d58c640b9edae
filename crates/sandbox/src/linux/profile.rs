//! The system call policy as a seccomp profile of container runtimes (JSON). It is an allowlist made from the same
//! table: what the table refuses, what it does not know and what is newer than its review is refused.

use serde_json::{Value, json};

use super::policy::{Action, MACHINE, POLICY, Rule, Test, When};

macro_rules! calls {
    ($($call:ident)*) => {
        &[$((stringify!($call), libc::$call)),*]
    };
}

/// The names of the calls, which a profile needs instead of numbers.
#[rustfmt::skip]
const CALLS: &[(&str, libc::c_long)] = calls![
    SYS_accept SYS_accept4 SYS_acct SYS_add_key SYS_adjtimex SYS_bind SYS_bpf SYS_brk SYS_capget SYS_capset
    SYS_chdir SYS_chroot SYS_clock_adjtime SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep
    SYS_clock_settime SYS_clone SYS_clone3 SYS_close SYS_close_range SYS_connect SYS_copy_file_range
    SYS_delete_module SYS_dup SYS_dup3 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2
    SYS_eventfd2 SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_faccessat SYS_faccessat2 SYS_fadvise64
    SYS_fallocate SYS_fanotify_init SYS_fanotify_mark SYS_fchdir SYS_fchmod SYS_fchmodat SYS_fchown
    SYS_fchownat SYS_fcntl SYS_fdatasync SYS_fgetxattr SYS_finit_module SYS_flistxattr SYS_flock
    SYS_fremovexattr SYS_fsconfig SYS_fsetxattr SYS_fsmount SYS_fsopen SYS_fspick SYS_fstat SYS_fstatfs
    SYS_fsync SYS_ftruncate SYS_futex SYS_futex_waitv SYS_get_mempolicy SYS_get_robust_list SYS_getcpu
    SYS_getcwd SYS_getdents64 SYS_getegid SYS_geteuid SYS_getgid SYS_getgroups SYS_getitimer SYS_getpeername
    SYS_getpgid SYS_getpid SYS_getppid SYS_getpriority SYS_getrandom SYS_getresgid SYS_getresuid
    SYS_getrusage SYS_getsid SYS_getsockname SYS_getsockopt SYS_gettid SYS_gettimeofday SYS_getuid
    SYS_getxattr SYS_init_module SYS_inotify_add_watch SYS_inotify_init1 SYS_inotify_rm_watch SYS_io_cancel
    SYS_io_destroy SYS_io_getevents SYS_io_setup SYS_io_submit SYS_io_uring_enter SYS_io_uring_register
    SYS_io_uring_setup SYS_ioctl SYS_ioprio_get SYS_ioprio_set SYS_kcmp SYS_kexec_file_load SYS_kexec_load
    SYS_keyctl SYS_kill SYS_landlock_add_rule SYS_landlock_create_ruleset SYS_landlock_restrict_self
    SYS_lgetxattr SYS_linkat SYS_listen SYS_listxattr SYS_llistxattr SYS_lookup_dcookie SYS_lremovexattr
    SYS_lseek SYS_lsetxattr SYS_madvise SYS_mbind SYS_membarrier SYS_memfd_create SYS_memfd_secret
    SYS_migrate_pages SYS_mincore SYS_mkdirat SYS_mknodat SYS_mlock SYS_mlock2 SYS_mlockall SYS_mmap
    SYS_mount SYS_mount_setattr SYS_move_mount SYS_move_pages SYS_mprotect SYS_mq_getsetattr SYS_mq_notify
    SYS_mq_open SYS_mq_timedreceive SYS_mq_timedsend SYS_mq_unlink SYS_mremap SYS_mseal SYS_msgctl SYS_msgget
    SYS_msgrcv SYS_msgsnd SYS_msync SYS_munlock SYS_munlockall SYS_munmap SYS_name_to_handle_at SYS_nanosleep
    SYS_newfstatat SYS_nfsservctl SYS_open_by_handle_at SYS_open_tree SYS_openat SYS_openat2
    SYS_perf_event_open SYS_personality SYS_pidfd_getfd SYS_pidfd_open SYS_pidfd_send_signal SYS_pipe2
    SYS_pivot_root SYS_pkey_alloc SYS_pkey_free SYS_pkey_mprotect SYS_ppoll SYS_prctl SYS_pread64 SYS_preadv
    SYS_preadv2 SYS_prlimit64 SYS_process_madvise SYS_process_mrelease SYS_process_vm_readv
    SYS_process_vm_writev SYS_pselect6 SYS_ptrace SYS_pwrite64 SYS_pwritev SYS_pwritev2 SYS_quotactl
    SYS_quotactl_fd SYS_read SYS_readahead SYS_readlinkat SYS_readv SYS_reboot SYS_recvfrom SYS_recvmmsg
    SYS_recvmsg SYS_remap_file_pages SYS_removexattr SYS_renameat2 SYS_request_key SYS_restart_syscall
    SYS_rseq SYS_rt_sigaction SYS_rt_sigpending SYS_rt_sigprocmask SYS_rt_sigqueueinfo SYS_rt_sigreturn
    SYS_rt_sigsuspend SYS_rt_sigtimedwait SYS_rt_tgsigqueueinfo SYS_sched_get_priority_max
    SYS_sched_get_priority_min SYS_sched_getaffinity SYS_sched_getattr SYS_sched_getparam
    SYS_sched_getscheduler SYS_sched_rr_get_interval SYS_sched_setaffinity SYS_sched_setattr
    SYS_sched_setparam SYS_sched_setscheduler SYS_sched_yield SYS_seccomp SYS_semctl SYS_semget SYS_semop
    SYS_semtimedop SYS_sendfile SYS_sendmmsg SYS_sendmsg SYS_sendto SYS_set_mempolicy
    SYS_set_mempolicy_home_node SYS_set_robust_list SYS_set_tid_address SYS_setdomainname SYS_setfsgid
    SYS_setfsuid SYS_setgid SYS_setgroups SYS_sethostname SYS_setitimer SYS_setns SYS_setpgid SYS_setpriority
    SYS_setregid SYS_setresgid SYS_setresuid SYS_setreuid SYS_setsid SYS_setsockopt SYS_settimeofday
    SYS_setuid SYS_setxattr SYS_shmat SYS_shmctl SYS_shmdt SYS_shmget SYS_shutdown SYS_sigaltstack
    SYS_signalfd4 SYS_socket SYS_socketpair SYS_splice SYS_statfs SYS_statx SYS_swapoff SYS_swapon
    SYS_symlinkat SYS_sync SYS_syncfs SYS_sysinfo SYS_syslog SYS_tee SYS_tgkill SYS_timer_create
    SYS_timer_delete SYS_timer_getoverrun SYS_timer_gettime SYS_timer_settime SYS_timerfd_create
    SYS_timerfd_gettime SYS_timerfd_settime SYS_times SYS_tkill SYS_truncate SYS_umask SYS_umount2 SYS_uname
    SYS_unlinkat SYS_unshare SYS_userfaultfd SYS_utimensat SYS_vhangup SYS_vmsplice SYS_wait4 SYS_waitid
    SYS_write SYS_writev
];

/// Calls that only one machine has.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const CALLS_OF_MACHINE: &[(&str, libc::c_long)] = calls![
    SYS__sysctl SYS_access SYS_afs_syscall SYS_alarm SYS_arch_prctl SYS_chmod SYS_chown SYS_creat SYS_dup2
    SYS_epoll_create SYS_epoll_ctl_old SYS_epoll_wait SYS_epoll_wait_old SYS_eventfd SYS_fchmodat2 SYS_fork
    SYS_futimesat SYS_get_thread_area SYS_getdents SYS_getpgrp SYS_getpmsg SYS_getrlimit SYS_inotify_init
    SYS_ioperm SYS_iopl SYS_lchown SYS_link SYS_lstat SYS_mkdir SYS_mknod SYS_modify_ldt SYS_open SYS_pause
    SYS_pipe SYS_poll SYS_putpmsg SYS_readlink SYS_rename SYS_renameat SYS_rmdir SYS_security SYS_select
    SYS_set_thread_area SYS_setrlimit SYS_signalfd SYS_stat SYS_symlink SYS_sync_file_range SYS_sysfs
    SYS_time SYS_tuxcall SYS_unlink SYS_uselib SYS_ustat SYS_utime SYS_utimes SYS_vfork SYS_vserver
];
#[cfg(not(target_arch = "x86_64"))]
const CALLS_OF_MACHINE: &[(&str, libc::c_long)] = &[];

#[cfg(target_arch = "x86_64")]
const MACHINE_NAME: &str = "SCMP_ARCH_X86_64";
#[cfg(not(target_arch = "x86_64"))]
const MACHINE_NAME: &str = "SCMP_ARCH_AARCH64";

/// Values of one argument that agree with `value` in the bits of `mask`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    mask: u32,
    value: u32,
}

/// Whether a rule is about all values of a block, none, or some.
fn concerns(test: Test, block: Block) -> Option<bool> {
    let is_single = block.mask == u32::MAX;
    match test {
        Test::Any => Some(true),
        Test::HasBits(_, bits) => {
            if block.value & bits != 0 {
                Some(true)
            } else if bits & !block.mask == 0 {
                Some(false)
            } else {
                None
            }
        }
        Test::Is(_, wanted) => {
            if wanted & block.mask == block.value {
                is_single.then_some(true)
            } else {
                Some(false)
            }
        }
        Test::IsNot(_, values) => {
            if values.iter().all(|value| value & block.mask != block.value) {
                Some(true)
            } else {
                is_single.then_some(false)
            }
        }
        Test::MaskedIs(_, mask, wanted) => {
            if (wanted ^ block.value) & mask & block.mask != 0 {
                Some(false)
            } else if mask & !block.mask == 0 {
                Some(true)
            } else {
                None
            }
        }
    }
}

fn argument(test: Test) -> Option<u32> {
    match test {
        Test::Any => None,
        Test::HasBits(argument, _)
        | Test::Is(argument, _)
        | Test::IsNot(argument, _)
        | Test::MaskedIs(argument, ..) => Some(argument),
    }
}

/// Cuts the values of an argument into blocks that are refused with an error, or allowed (none).
fn cut(rules: &[&Rule], block: Block, blocks: &mut Vec<(Block, Option<i32>)>) {
    let mut undecided = None;
    for rule in rules {
        match concerns(rule.test, block) {
            Some(true) => {
                if undecided.is_none() {
                    let Action::Fail(error) = rule.action;
                    blocks.push((block, Some(error)));
                    return;
                }
            }
            Some(false) => {}
            None => undecided = Some(rule.test),
        }
    }
    let Some(test) = undecided else {
        blocks.push((block, None));
        return;
    };
    // The highest bit that is open, but only one that the rule looks at, where it looks at single bits.
    let relevant = match test {
        Test::HasBits(_, bits) => bits,
        Test::MaskedIs(_, mask, _) => mask,
        _ => u32::MAX,
    };
    let bit = 1u32 << (31 - (relevant & !block.mask).leading_zeros().min(31));
    let mask = block.mask | bit;
    cut(rules, Block { mask, value: block.value }, blocks);
    cut(rules, Block { mask, value: block.value | bit }, blocks);
}

/// The profile. With `kills` a call that no tool has a use for ends the program instead of failing; what programs try
/// and do without (an unknown call, a socket of another family) still fails.
pub(crate) fn profile(kills: bool) -> Value {
    let rules: Vec<&Rule> =
        POLICY.iter().chain(MACHINE).filter(|rule| matches!(rule.when, When::Always)).collect();
    let mut allowed = Vec::new();
    let mut special: Vec<Value> = Vec::new();
    for (name, number) in CALLS.iter().chain(CALLS_OF_MACHINE) {
        let name = name.strip_prefix("SYS_").unwrap_or(name);
        let of_call: Vec<&Rule> = rules.iter().copied().filter(|rule| rule.call == *number).collect();
        if of_call.is_empty() {
            allowed.push(name);
            continue;
        }
        let fail = |error: i32| json!({ "names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": error });
        if let Some(rule) = of_call.iter().find(|rule| rule.test == Test::Any) {
            let Action::Fail(error) = rule.action;
            if error == libc::ENOSYS || !kills {
                special.push(fail(error));
            }
            continue;
        }
        let index = of_call.iter().find_map(|rule| argument(rule.test)).unwrap_or_default();
        let mut blocks = Vec::new();
        if of_call.iter().all(|rule| argument(rule.test) == Some(index)) {
            cut(&of_call, Block { mask: 0, value: 0 }, &mut blocks);
        }
        for (block, error) in blocks {
            let mut line = match error {
                Some(error) => fail(error),
                None => json!({ "names": [name], "action": "SCMP_ACT_ALLOW" }),
            };
            line["args"] = json!([{
                "index": index, "value": block.mask, "valueTwo": block.value, "op": "SCMP_CMP_MASKED_EQ",
            }]);
            special.push(line);
        }
    }
    special.push(json!({ "names": allowed, "action": "SCMP_ACT_ALLOW" }));
    json!({
        "defaultAction": if kills { "SCMP_ACT_KILL_PROCESS" } else { "SCMP_ACT_ERRNO" },
        "architectures": [MACHINE_NAME],
        "syscalls": special,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line: the action, the error, and under which mask the argument of which number is which value.
    type Line = (String, u64, Option<(usize, u64, u64)>);

    /// The lines of a profile by the names that they are for, and what happens to all other calls.
    struct Read {
        default: String,
        lines: std::collections::HashMap<String, Vec<Line>>,
    }

    fn read(profile: &Value) -> Read {
        let mut lines = std::collections::HashMap::<String, Vec<Line>>::new();
        for line in profile["syscalls"].as_array().unwrap() {
            let argument = line["args"].as_array().map(|arguments| {
                let number = |name: &str| arguments[0][name].as_u64().unwrap();
                assert!(arguments.len() == 1 && arguments[0]["op"] == "SCMP_CMP_MASKED_EQ");
                (number("index") as usize, number("value"), number("valueTwo"))
            });
            let action = line["action"].as_str().unwrap();
            for name in line["names"].as_array().unwrap() {
                let error = line["errnoRet"].as_u64().unwrap_or_default();
                let place = lines.entry(name.as_str().unwrap().to_owned()).or_default();
                place.push((action.to_owned(), error, argument));
            }
        }
        Read { default: profile["defaultAction"].as_str().unwrap().to_owned(), lines }
    }

    /// What a runtime does with a profile.
    fn evaluate(profile: &Read, name: &str, arguments: [u32; 6]) -> (String, u64) {
        for (action, error, argument) in profile.lines.get(name).into_iter().flatten() {
            let holds =
                argument.is_none_or(|(index, mask, value)| u64::from(arguments[index]) & mask == value);
            if holds {
                return (action.clone(), *error);
            }
        }
        (profile.default.clone(), 1)
    }

    /// The table itself, read without the generator: the oracle.
    fn expected(number: libc::c_long, arguments: [u32; 6]) -> Option<i32> {
        let rules = POLICY.iter().chain(MACHINE);
        for rule in rules.filter(|rule| rule.call == number && matches!(rule.when, When::Always)) {
            let refused = match rule.test {
                Test::Any => true,
                Test::HasBits(argument, bits) => arguments[argument as usize] & bits != 0,
                Test::Is(argument, value) => arguments[argument as usize] == value,
                Test::IsNot(argument, values) => !values.contains(&arguments[argument as usize]),
                Test::MaskedIs(argument, mask, value) => arguments[argument as usize] & mask == value,
            };
            if refused {
                let Action::Fail(error) = rule.action;
                return Some(error);
            }
        }
        None
    }

    #[test]
    fn the_profile_does_what_the_table_says() {
        let values = [
            0u32,
            1,
            2,
            16,
            17,
            40,
            0x11,
            0x5411,
            0x5412,
            0x5413,
            0x541C,
            0x5423,
            0x20000,
            0x1000_0000,
            0x4000_0000,
            0x7E02_0000,
            0x8000_0000,
            u32::MAX,
            u32::MAX - 1,
        ];
        let (mild, hard) = (read(&profile(false)), read(&profile(true)));
        for (name, number) in CALLS.iter().chain(CALLS_OF_MACHINE) {
            let name = name.strip_prefix("SYS_").unwrap();
            for first in values {
                for second in values {
                    let arguments = [first, second, 0, 0, 0, 0];
                    let wanted = match expected(*number, arguments) {
                        Some(error) => ("SCMP_ACT_ERRNO".to_owned(), error as u64),
                        None => ("SCMP_ACT_ALLOW".to_owned(), 0),
                    };
                    assert_eq!(evaluate(&mild, name, arguments), wanted, "{name} {arguments:x?}");
                    let is = evaluate(&hard, name, arguments).0;
                    let may = [wanted.0.as_str(), "SCMP_ACT_KILL_PROCESS"];
                    let allowed = wanted.0 == "SCMP_ACT_ALLOW";
                    assert!(
                        if allowed { is == wanted.0 } else { may.contains(&is.as_str()) },
                        "{name}: {is}"
                    );
                }
            }
        }
        assert_eq!(evaluate(&hard, "mount", [0; 6]).0, "SCMP_ACT_KILL_PROCESS");
        assert_eq!(evaluate(&hard, "clone3", [0; 6]), ("SCMP_ACT_ERRNO".into(), 38));
        assert_eq!(evaluate(&hard, "socket", [2, 0, 0, 0, 0, 0]).0, "SCMP_ACT_ERRNO");
        assert_eq!(evaluate(&mild, "a_call_of_the_future", [0; 6]).0, "SCMP_ACT_ERRNO");
    }

    #[test]
    fn every_rule_is_about_a_named_call_or_one_that_nothing_allows() {
        let named = |rule: &&Rule| !CALLS.iter().chain(CALLS_OF_MACHINE).any(|(_, call)| *call == rule.call);
        for rule in POLICY.iter().chain(MACHINE).filter(named) {
            assert!(rule.test == Test::Any, "{rule:?} would be allowed by nobody, whatever its test says");
        }
        assert!(profile(false).to_string().len() < 60_000, "it travels with every container");
    }
}
