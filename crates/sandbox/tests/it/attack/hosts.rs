//! Limited hosts: this host with fewer features, by facts or for a separate process.

use std::os::unix::process::CommandExt as _;

use toolpost_sandbox::Host;

/// A kind of limited host.
#[derive(Debug)]
pub(crate) struct PoorHost {
    pub(crate) name: &'static str,
    pub(crate) how: How,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum How {
    /// The sandbox is given fewer facts than the host has.
    Facts(fn(&Host) -> Host),
    /// The tests run again in a limited process: these system calls fail with an error, or a shell command
    /// prepares it.
    Process(&'static [(&'static [u32], i32)], Option<&'static str>),
}

const LANDLOCK: &[u32] = &[444, 445, 446];
const NEW_CALLS: &[u32] = &[424, 434, 435, 436, 437];
const MOUNTS: &[u32] = &[155, 165, 166, 428, 429, 430, 431, 432, 433, 442];

pub(crate) const HOSTS: &[PoorHost] = &[
    PoorHost { name: "no namespaces", how: How::Facts(Host::without_namespaces) },
    PoorHost {
        name: "Landlock 4, no namespaces",
        how: How::Facts(|host| host.without_namespaces().with_landlock(4)),
    },
    PoorHost { name: "no Landlock", how: How::Facts(|host| host.with_landlock(0)) },
    PoorHost { name: "no control groups", how: How::Facts(Host::without_cgroups) },
    PoorHost {
        name: "no namespaces, Landlock or control groups",
        how: How::Facts(|host| host.without_namespaces().with_landlock(0).without_cgroups()),
    },
    PoorHost { name: "a kernel without Landlock", how: How::Process(&[(LANDLOCK, libc::ENOSYS)], None) },
    PoorHost {
        name: "a kernel of 2019",
        how: How::Process(&[(LANDLOCK, libc::ENOSYS), (NEW_CALLS, libc::ENOSYS)], None),
    },
    PoorHost {
        name: "user namespaces without rights, as AppArmor gives",
        how: How::Process(&[(MOUNTS, libc::EPERM)], None),
    },
    PoorHost {
        name: "an unprivileged container",
        how: How::Process(
            &[(&[56, 272, 308], libc::EPERM), (MOUNTS, libc::EPERM), (&[435], libc::ENOSYS)],
            Some("exec"),
        ),
    },
    PoorHost {
        name: "user namespaces used up",
        how: How::Process(
            &[],
            Some(
                "echo 0 > /proc/sys/user/max_user_namespaces && echo 0 > /proc/sys/user/max_mnt_namespaces && exec",
            ),
        ),
    },
];

/// Creates a command on a limited host. The last one needs its own user namespace.
pub(crate) fn command(host: &PoorHost, program: &std::path::Path) -> Option<std::process::Command> {
    let How::Process(calls, shell) = host.how else { return None };
    let used_up = host.name.contains("used up");
    #[expect(clippy::disallowed_methods, reason = "the tests themselves, on a poor host")]
    let mut command =
        std::process::Command::new(if used_up { "unshare".as_ref() } else { program.as_os_str() });
    if used_up {
        let script = format!("{} {} \"$@\"", shell.unwrap_or_default(), program.display());
        command.args(["--user", "--map-root-user", "sh", "-c", &script, "sh"]);
        if super::lines::user() == 0 {
            // Real root would have no other user to run code as, which is an error.
            command.uid(65_534).gid(65_534);
        }
    }
    let filter = filter(calls);
    if !filter.is_empty() {
        let bare = host.name.contains("container");
        // SAFETY: only system calls; the filter was made before the fork and lives as long as the command.
        unsafe {
            command.pre_exec(move || become_poor(&filter, bare));
        }
    }
    Some(command)
}

/// A filter in which these calls fail. `clone` fails only with namespace flags.
fn filter(calls: &[(&[u32], i32)]) -> Vec<libc::sock_filter> {
    const LOAD: u16 = 0x20;
    const EQUAL: u16 = 0x15;
    const BITS: u16 = 0x45;
    const RETURN: u16 = 0x06;
    const NAMESPACES: u32 = 0x7E02_0000;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    if calls.is_empty() {
        return Vec::new();
    }
    let mut steps = Vec::new();
    for (numbers, error) in calls {
        let fail = 0x0005_0000 | error.cast_unsigned();
        for number in *numbers {
            steps.push(step(LOAD, 0, 0, 0));
            if *number == 56 {
                steps.push(step(EQUAL, 0, 3, 56));
                steps.push(step(LOAD, 0, 0, 16));
                steps.push(step(BITS, 0, 1, NAMESPACES));
            } else {
                steps.push(step(EQUAL, 0, 1, *number));
            }
            steps.push(step(RETURN, 0, 0, fail));
        }
    }
    steps.push(step(RETURN, 0, 0, 0x7FFF_0000));
    steps
}

/// Between fork and exec: no new privileges, for a container no capabilities, then the filter.
fn become_poor(filter: &[libc::sock_filter], bare: bool) -> std::io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    let check = |result: i32| if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) };
    // SAFETY: plain numbers, and pointers to memory that lives during the calls.
    unsafe {
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        check(libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program, 0, 0))?;
        if bare {
            // The capabilities that Docker keeps for root.
            let kept = 0xA804_25FBu32;
            let header = [0x2008_0522u32, 0];
            let data = [kept, kept, 0, 0, 0, 0];
            check(libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) as i32).or_else(
                |error| {
                    // An ordinary user has none to drop.
                    if error.raw_os_error() == Some(libc::EPERM) { Ok(()) } else { Err(error) }
                },
            )?;
        }
    }
    Ok(())
}
