//! Clones a child into its namespaces, where it performs its steps.

use std::ffi::CString;
use std::io;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::child_steps::{self, Step};
use super::kernel::check;

/// The lowest number of a descriptor that the child places; above all targets.
const LOWEST: i32 = 16;

/// The start parameters of a child.
#[derive(Debug)]
pub(super) struct Plan {
    /// The namespaces, as flags of clone.
    pub(super) namespaces: u64,
    /// The cgroup v2 in which the child starts.
    pub(super) cgroup: Option<OwnedFd>,
    /// The child's steps.
    pub(super) steps: Vec<Step>,
}

/// A running child.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) control: OwnedFd,
    /// Whether the status was reaped; the pid may then belong to another process.
    reaped: bool,
    /// For a child of another process: the processor time in microseconds that does not count.
    adopted: Option<u64>,
    /// A value to keep alive as long as the child.
    keeper: Option<Box<dyn std::any::Any + Send + Sync>>,
}

/// The kernel's `struct clone_args`.
#[repr(C, align(8))]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// The time in which a probing child must answer.
const MAX_PROBE_TIME: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

const INTO_CGROUP: u64 = 0x2_0000_0000;

/// Moves a descriptor above all targets of the child.
pub(super) fn high(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    if descriptor.as_raw_fd() >= LOWEST {
        return Ok(descriptor);
    }
    Ok(fcntl_dupfd_cloexec(&descriptor, LOWEST)?)
}

/// Starts the child.
///
/// Unless the host must act before the child's exec, the child shares the host's memory until then, as with
/// `vfork`, and the calling thread is suspended. Copying the host's page tables and the later page faults
/// would cost 0.4 ms for a small host and much more for a large one.
pub(super) fn start(plan: &Plan) -> io::Result<Child> {
    let (host, child) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let child = high(child)?;
    // No signal handler of the host may run in the child; the first process resets the mask.
    let masked = MaskedSignals::new();
    let waits = plan.steps.iter().any(|step| matches!(step, Step::Await { .. }));
    let (pid, pidfd) =
        if waits || plan.cgroup.is_some() { copy(plan, &child) } else { borrow(plan, &child) }?;
    drop(masked);
    // SAFETY: the kernel made this descriptor for this call.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Child { pid, pidfd, control: host, reaped: false, adopted: None, keeper: None })
}

/// The argument of the child function.
struct Start<'a> {
    plan: &'a Plan,
    control: &'a OwnedFd,
}

extern "C" fn child_main(start: *mut libc::c_void) -> i32 {
    // SAFETY: `borrow` passes this very type and stands still while the child runs.
    let start = unsafe { &*start.cast::<Start<'_>>() };
    child_steps::perform_all(&start.plan.steps, start.control.as_fd())
}

/// Starts a child in the host's memory with its own stack.
///
/// It only reads its input, and writes to its stack and to the `errno` of the calling thread, which is
/// suspended.
fn borrow(plan: &Plan, control: &OwnedFd) -> io::Result<(i32, i32)> {
    const STACK: usize = 128 << 10;
    let mut stack: Vec<u128> = Vec::with_capacity(STACK / size_of::<u128>());
    let mut pidfd: i32 = -1;
    let flags = plan.namespaces as i32 | libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD;
    let mut start = Start { plan, control };
    // SAFETY: the stack belongs to the child alone and outlives it, since this thread stands still until the child has
    // another memory or is gone; the top is aligned. The child's function never returns.
    let result = unsafe {
        let top = stack.as_mut_ptr().add(STACK / size_of::<u128>());
        libc::clone(child_main, top.cast(), flags, (&raw mut start).cast(), &raw mut pidfd)
    };
    Ok((check(result.into())?, pidfd))
}

/// Starts a child with a copy of the host's memory, which runs concurrently.
fn copy(plan: &Plan, control: &OwnedFd) -> io::Result<(i32, i32)> {
    let mut pidfd: i32 = -1;
    let mut arguments = CloneArguments {
        flags: plan.namespaces | libc::CLONE_PIDFD as u64,
        pidfd: &raw mut pidfd as u64,
        ..CloneArguments::default()
    };
    if let Some(cgroup) = &plan.cgroup {
        arguments.flags |= INTO_CGROUP;
        arguments.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: like a fork: the child has a copy of this memory and does only what is safe after one.
    let mut result =
        check(unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<CloneArguments>()) });
    if matches!(result, Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM)) && plan.cgroup.is_none() {
        // Containers refuse clone3, whose flags their filters cannot see.
        // SAFETY: as above; clone puts the descriptor where its third argument points.
        result = check(unsafe {
            libc::syscall(libc::SYS_clone, arguments.flags, 0usize, &raw mut pidfd, 0usize, 0usize)
        });
    }
    match result? {
        0 => child_steps::perform_all(&plan.steps, control.as_fd()),
        pid => Ok((pid, pidfd)),
    }
}

/// The letter of the child's first message; none if it ended without one, an error's if it timed out.
pub(super) fn first_letter(child: &Child) -> Option<u8> {
    let mut waiting = [PollFd::new(&child.control, PollFlags::IN)];
    match poll(&mut waiting, Some(&MAX_PROBE_TIME)) {
        Ok(count) if count > 0 => {}
        _ => return Some(b'E'),
    }
    let mut bytes = [0u8; 64];
    match rustix::net::recv(&child.control, &mut bytes, rustix::net::RecvFlags::DONTWAIT) {
        Ok((0, _)) => None,
        Ok(_) => u64::from_ne_bytes(bytes.first_chunk().copied().unwrap_or_default()).try_into().ok(),
        Err(_) => Some(b'E'),
    }
}

/// Blocks all signals while it lives.
struct MaskedSignals(libc::sigset_t);

impl MaskedSignals {
    fn new() -> Self {
        // SAFETY: both sets are plain memory that the calls fill.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for MaskedSignals {
    fn drop(&mut self) {
        // SAFETY: the set was filled by the kernel.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// The kernel's counters for a child and its reaped descendants.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ChildUsage {
    pub(super) user_micros: u64,
    pub(super) system_micros: u64,
}

impl Child {
    /// Wraps a child of another process in a process namespace, which reaps it.
    pub(super) fn adopt(pid: i32, pidfd: OwnedFd, control: OwnedFd) -> Self {
        Self { pid, pidfd, control, reaped: false, adopted: Some(0), keeper: None }
    }

    /// Keeps a value alive as long as the child.
    pub(super) fn keep(&mut self, keeper: Option<Box<dyn std::any::Any + Send + Sync>>) {
        self.keeper = keeper;
    }

    pub(super) fn is_adopted(&self) -> bool {
        self.adopted.is_some()
    }

    /// Sets the processor time in microseconds that an adopted child had used before its work began.
    pub(super) fn begin(&mut self, spent: u64) {
        self.adopted = self.adopted.map(|_| spent);
    }

    /// The processor time in microseconds that does not count.
    pub(super) fn spent(&self) -> u64 {
        self.adopted.unwrap_or(0)
    }

    /// Kills the child. In a process namespace, everything in it dies too.
    pub(super) fn kill(&self) {
        use rustix::process::Signal;
        if self.reaped {
            let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        } else {
            super::tree::signal(self.pidfd.as_fd(), self.pid, Signal::KILL);
        }
    }

    pub(super) fn is_reaped(&self) -> bool {
        self.reaped
    }

    /// Waits for the child's end, which must be near, and reaps it.
    pub(super) fn reap(&mut self) -> ChildUsage {
        if self.is_adopted() {
            let mut waiting = [rustix::event::PollFd::new(&self.pidfd, rustix::event::PollFlags::IN)];
            while matches!(rustix::event::poll(&mut waiting, None), Err(rustix::io::Errno::INTR)) {}
            self.reaped = true;
            return ChildUsage::default();
        }
        // SAFETY: plain memory that the call fills.
        let (mut information, mut usage): (libc::siginfo_t, libc::rusage) = unsafe { std::mem::zeroed() };
        let mut which = (libc::P_PIDFD, self.pidfd.as_raw_fd());
        loop {
            // SAFETY: both structures live during the call. The raw call also gives the usage.
            let result = check(unsafe {
                libc::syscall(
                    libc::SYS_waitid,
                    which.0,
                    which.1,
                    &raw mut information,
                    libc::WEXITED | libc::__WALL,
                    &raw mut usage,
                )
            });
            match result {
                Err(rustix::io::Errno::INTR) => {}
                // Linux 5.3 has pidfds but cannot wait for them.
                Err(rustix::io::Errno::INVAL) if which.0 == libc::P_PIDFD => which = (libc::P_PID, self.pid),
                _ => break,
            }
        }
        self.reaped = true;
        let micros =
            |time: libc::timeval| time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_usec.unsigned_abs();
        ChildUsage { user_micros: micros(usage.ru_utime), system_micros: micros(usage.ru_stime) }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
            self.reap();
        }
    }
}

/// A sealed, executable copy of the first process's program in memory.
pub(super) fn first_process() -> io::Result<BorrowedFd<'static>> {
    use std::sync::OnceLock;
    static PROGRAM: OnceLock<Result<OwnedFd, i32>> = OnceLock::new();
    let made = PROGRAM.get_or_init(|| {
        let make = || -> io::Result<OwnedFd> { sealed(c"init", INIT, true) };
        make().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    });
    match made {
        Ok(descriptor) => Ok(descriptor.as_fd()),
        Err(number) => Err(io::Error::from_raw_os_error(*number)),
    }
}

/// The program, empty if it was not built.
pub(super) static INIT: &[u8] = include_bytes!(env!("TOOLPOST_SANDBOX_INIT"));
/// The reason why it was not built.
pub(super) const INIT_MISSING: &str = env!("TOOLPOST_SANDBOX_INIT_MISSING");

/// A sealed memory file with a high descriptor number.
pub(super) fn sealed(name: &std::ffi::CStr, content: &[u8], executable: bool) -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags};
    const EXECUTABLE: u32 = 0x10;
    const NOT_EXECUTABLE: u32 = 0x8;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let kind = MemfdFlags::from_bits_retain(if executable { EXECUTABLE } else { NOT_EXECUTABLE });
    // Kernels before 6.3 lack both flags.
    let file = match rustix::fs::memfd_create(name, flags | kind) {
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        other => other?,
    };
    let file = high(file)?;
    let mut rest = content;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    rustix::fs::fcntl_add_seals(
        &file,
        SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
    )?;
    Ok(file)
}

/// Duplicates a descriptor to a high number.
pub(super) fn duplicate(descriptor: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(fcntl_dupfd_cloexec(descriptor, LOWEST)?)
}

/// Converts text without NUL to a C string. A NUL would end it.
pub(super) fn c_string(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes = text.into();
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(end);
    }
    CString::new(bytes).unwrap_or_default()
}
