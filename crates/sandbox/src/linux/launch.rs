//! The clone: a child in its namespaces that carries out its steps, and the host's ends of its descriptors.

use std::ffi::CString;
use std::io;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::kernel::check;
use super::steps::{self, Step};

/// The lowest number of a descriptor that the child moves to its place: above every place.
const LOWEST: i32 = 16;

/// Everything that one child needs.
#[derive(Debug)]
pub(super) struct Plan {
    /// The namespaces, as flags of clone.
    pub(super) namespaces: u64,
    /// The cgroup v2 into which the child is born.
    pub(super) cgroup: Option<OwnedFd>,
    /// What the child does.
    pub(super) steps: Vec<Step>,
}

/// A child that runs.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) control: OwnedFd,
    /// Whether the status was collected, after which the number may belong to another process.
    reaped: bool,
    /// If another process made it, and collects it: the processor time in microseconds that does not count.
    adopted: Option<u64>,
    /// What must live as long as it does.
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

/// A child that only tries something out must answer within this time.
const LONGEST_TRIAL: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

const INTO_CGROUP: u64 = 0x2_0000_0000;

/// Gives a descriptor a number that no place of the child has.
pub(super) fn high(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    if descriptor.as_raw_fd() >= LOWEST {
        return Ok(descriptor);
    }
    Ok(fcntl_dupfd_cloexec(&descriptor, LOWEST)?)
}

/// Starts the child.
///
/// Unless the host has to do something before the child's exec, the child borrows the host's memory until then, as
/// `vfork` does, and the calling thread stands still: copying the tables of the host's memory, and the faults of both
/// sides afterwards, cost 0.4 ms for a small host and much more for a large one.
pub(super) fn start(plan: &Plan) -> io::Result<Child> {
    let (host, child) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let child = high(child)?;
    // No handler of the host may run in the child; the first process resets the mask.
    let masked = MaskedSignals::new();
    let waits = plan.steps.iter().any(|step| matches!(step, Step::Await));
    let (pid, pidfd) =
        if waits || plan.cgroup.is_some() { copy(plan, &child) } else { borrow(plan, &child) }?;
    drop(masked);
    // SAFETY: the kernel made this descriptor for this call.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Child { pid, pidfd, control: host, reaped: false, adopted: None, keeper: None })
}

/// What the child function gets.
struct Start<'a> {
    plan: &'a Plan,
    control: &'a OwnedFd,
}

extern "C" fn child_main(start: *mut libc::c_void) -> i32 {
    // SAFETY: `borrow` passes this very type and stands still while the child runs.
    let start = unsafe { &*start.cast::<Start<'_>>() };
    steps::perform_all(&start.plan.steps, start.control.as_fd())
}

/// A child in the host's memory, on a stack of its own. It only reads what it is given, and writes to its stack and to
/// the error number of the calling thread, which stands still.
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

/// A child with a copy of the host's memory, which runs at the same time.
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
        0 => steps::perform_all(&plan.steps, control.as_fd()),
        pid => Ok((pid, pidfd)),
    }
}

/// The letter of the child's first message; none if it ended without one, an error's if it is too slow.
pub(super) fn first_letter(child: &Child) -> Option<u8> {
    let mut waiting = [PollFd::new(&child.control, PollFlags::IN)];
    match poll(&mut waiting, Some(&LONGEST_TRIAL)) {
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

/// All signals are blocked while it lives.
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

/// What the kernel counted for a child and everything that it had waited for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ChildUsage {
    pub(super) user_micros: u64,
    pub(super) system_micros: u64,
}

impl Child {
    /// A child that another process of this crate's made in a process namespace of its own, and collects.
    pub(super) fn adopt(pid: i32, pidfd: OwnedFd, control: OwnedFd) -> Self {
        Self { pid, pidfd, control, reaped: false, adopted: Some(0), keeper: None }
    }

    /// Keeps something alive as long as the child.
    pub(super) fn keep(&mut self, keeper: Option<Box<dyn std::any::Any + Send + Sync>>) {
        self.keeper = keeper;
    }

    pub(super) fn is_adopted(&self) -> bool {
        self.adopted.is_some()
    }

    /// Says how much processor time an adopted child had used before its work began, in microseconds.
    pub(super) fn begin(&mut self, spent: u64) {
        self.adopted = self.adopted.map(|_| spent);
    }

    /// The processor time in microseconds that does not count.
    pub(super) fn spent(&self) -> u64 {
        self.adopted.unwrap_or(0)
    }

    /// Kills the child. In a process namespace everything in it dies with it.
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

    /// Waits for the end of the child, which must be near, and collects it.
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
                // Linux 5.3 knows the descriptor but does not wait by it.
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

/// The program, empty if it could not be built.
pub(super) static INIT: &[u8] = include_bytes!(env!("TOOLPOST_SANDBOX_INIT"));
/// Why it could not be built.
pub(super) const INIT_MISSING: &str = env!("TOOLPOST_SANDBOX_INIT_MISSING");

/// Bytes in a file in memory that nobody can change any more, with a high number.
pub(super) fn sealed(name: &std::ffi::CStr, content: &[u8], executable: bool) -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags};
    const EXECUTABLE: u32 = 0x10;
    const NOT_EXECUTABLE: u32 = 0x8;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let kind = MemfdFlags::from_bits_retain(if executable { EXECUTABLE } else { NOT_EXECUTABLE });
    // Kernels before 6.3 know neither flag.
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

/// A copy of a descriptor with a high number.
pub(super) fn duplicate(descriptor: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(fcntl_dupfd_cloexec(descriptor, LOWEST)?)
}

/// A C string of text that was checked to have no NUL; one that has ends there.
pub(super) fn c_string(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes = text.into();
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(end);
    }
    CString::new(bytes).unwrap_or_default()
}
