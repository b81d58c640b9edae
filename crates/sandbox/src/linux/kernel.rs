//! Raw system calls without a safe wrapper, and kernel probes.

use rustix::fd::{AsRawFd as _, BorrowedFd};
use rustix::io::Errno;

/// Converts the result of a raw libc call.
pub(super) fn check(result: libc::c_long) -> Result<i32, Errno> {
    if result < 0 {
        // SAFETY: libc gives a pointer to this thread's own error number.
        return Err(Errno::from_raw_os_error(unsafe { *libc::__errno_location() }));
    }
    Ok(result as i32)
}

/// Creates files as another user on this thread while it lives. Needs root.
pub(super) struct FileUser(i32, i32);

impl FileUser {
    pub(super) fn become_user(user: u32, group: u32) -> Self {
        // SAFETY: the calls change how this thread alone meets files, and read no memory.
        unsafe {
            let group = libc::setfsgid(group);
            Self(libc::setfsuid(user), group)
        }
    }
}

impl Drop for FileUser {
    fn drop(&mut self) {
        // SAFETY: as above; these are the numbers from before.
        unsafe {
            libc::setfsuid(self.0.cast_unsigned());
            libc::setfsgid(self.1.cast_unsigned());
        }
    }
}

/// The kernel's `struct seccomp_notif`.
#[repr(C)]
#[derive(Default)]
struct Notice {
    id: u64,
    process: u32,
    flags: u32,
    number: i32,
    machine: u32,
    instruction: u64,
    arguments: [u64; 6],
}

/// The number of a reported and blocked call, if there is one.
pub(super) fn shown_call(listener: BorrowedFd<'_>) -> Option<i32> {
    const RECEIVE: libc::c_ulong = 0xC050_2100;
    let mut notice = Notice::default();
    // SAFETY: the structure is zero, as the kernel wants it, has the size in the request's number, and lives during the
    // call.
    let result = unsafe { libc::syscall(libc::SYS_ioctl, listener.as_raw_fd(), RECEIVE, &raw mut notice) };
    (result == 0).then_some(notice.number)
}

/// The exit status of a reaped process, as `wait` returns it: since Linux 6.15 its pidfd has it.
pub(super) fn exit_status(pidfd: BorrowedFd<'_>) -> Option<i32> {
    /// `_IOWR(0xFF, 11, 64)`.
    const GET_INFORMATION: libc::c_ulong = 0xC040_FF0B;
    const EXIT: u64 = 1 << 3;
    let mut information = [0u32; 16];
    information[0] = EXIT as u32;
    // SAFETY: the structure has the 64 bytes that the number of the request names, and lives during the call.
    let result = unsafe {
        libc::syscall(libc::SYS_ioctl, pidfd.as_raw_fd(), GET_INFORMATION, information.as_mut_ptr())
    };
    (result == 0 && u64::from(information[0]) & EXIT != 0).then_some(information[15] as i32)
}

/// Whether the kernel supports filters that fail a call.
pub(super) fn has_seccomp() -> bool {
    let action = 0x0005_0000u32;
    // SAFETY: SECCOMP_GET_ACTION_AVAIL reads one number, which lives during the call.
    unsafe { libc::syscall(libc::SYS_seccomp, 2u32, 0u32, &raw const action) == 0 }
}

/// Whether `clone3` is available. Without arguments it creates nothing.
pub(super) fn clones_with_arguments() -> bool {
    static ANSWER: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ANSWER.get_or_init(|| {
        // SAFETY: the kernel refuses arguments of no size before it reads them.
        let result = check(unsafe { libc::syscall(libc::SYS_clone3, 0usize, 0usize) });
        result == Err(Errno::INVAL)
    })
}

/// The number of a resource, whose type differs between C libraries.
#[cfg(target_env = "gnu")]
pub(super) type Resource = libc::__rlimit_resource_t;
/// The number of a resource, whose type differs between C libraries.
#[cfg(not(target_env = "gnu"))]
pub(super) type Resource = libc::c_int;

/// The hard limits of the resources that a run limits.
pub(super) fn hard_limits() -> Vec<(Resource, u64)> {
    [
        libc::RLIMIT_CPU,
        libc::RLIMIT_FSIZE,
        libc::RLIMIT_NOFILE,
        libc::RLIMIT_CORE,
        libc::RLIMIT_SIGPENDING,
        libc::RLIMIT_MEMLOCK,
        libc::RLIMIT_RTPRIO,
        libc::RLIMIT_NICE,
        libc::RLIMIT_MSGQUEUE,
        libc::RLIMIT_NPROC,
        libc::RLIMIT_DATA,
    ]
    .into_iter()
    .map(|resource| {
        let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: u64::MAX };
        // SAFETY: the structure lives during the call and is filled by it.
        unsafe { libc::prlimit64(0, resource, std::ptr::null(), &raw mut limit) };
        (resource, limit.rlim_max)
    })
    .collect()
}

/// Optional calls of the set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Calls {
    /// A child can start in a cgroup.
    pub(super) clone3: bool,
    /// Signals can be sent by pidfd.
    pub(super) pidfd: bool,
    /// An existing process can be opened as a pidfd; required by pools and sessions.
    pub(super) pidfd_open: bool,
    /// A range of descriptors can be closed.
    pub(super) close_range: bool,
}

impl Calls {
    /// Probes the kernel, and a container's filter. Changes nothing.
    pub(super) fn probe() -> Self {
        let is_there =
            |result: libc::c_long| !matches!(check(result), Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS));
        // SAFETY: a descriptor and a range that nobody has: the kernel refuses the one and closes nothing.
        unsafe {
            Self {
                clone3: clones_with_arguments(),
                pidfd: is_there(libc::syscall(libc::SYS_pidfd_send_signal, -1, 0, std::ptr::null::<u8>(), 0)),
                pidfd_open: is_there(libc::syscall(libc::SYS_pidfd_open, -1, 0)),
                close_range: is_there(libc::syscall(libc::SYS_close_range, u32::MAX, u32::MAX, 0u32)),
            }
        }
    }
}
