//! The child's side: a list of steps, computed before the clone and performed between clone and exec.
//!
//! Between clone and exec of a process with threads only async-signal-safe calls are allowed. So each step
//! contains all of its data; performing it allocates nothing, takes no lock and cannot panic.

use std::ffi::{CStr, CString};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::identity::QUOTA_PLACE;
use super::kernel::{Resource, check};
use super::landlock::Landlock;

/// The descriptor of the control socket, after their placement. The first process knows the number.
pub(super) const CONTROL: RawFd = 3;
/// The descriptor to which code writes its value.
pub(super) const VALUE: RawFd = 4;
/// The descriptor from which an interpreter reads its code.
pub(super) const CODE: RawFd = 5;
/// The descriptor of the first process's program, until it runs.
const PROGRAM: RawFd = 6;
/// The descriptor with which the first process kills everything when the host is gone.
const KILL: RawFd = 7;

/// Mount attributes, in the kernel's bits.
pub(super) mod attribute {
    pub(in super::super) const READ_ONLY: u64 = 1;
    pub(in super::super) const NO_SETUID: u64 = 2;
    pub(in super::super) const NO_DEVICES: u64 = 4;
    pub(in super::super) const IDENTITY_MAP: u64 = 0x0010_0000;
}

/// The kernel's `struct mount_attr`.
#[repr(C)]
pub(super) struct MountAttributes {
    pub(super) set: u64,
    pub(super) clear: u64,
    pub(super) propagation: u64,
    pub(super) user_namespace: u64,
}

/// A step from a copy of the host process to the confined program.
#[derive(Debug)]
pub(super) enum Step {
    /// Writes a short text to an open descriptor: joins a cgroup.
    Join(OwnedFd),
    /// Writes a short text to a file that exists.
    Write { path: CString, text: Vec<u8> },
    /// Creates a namespace.
    Unshare(i32),
    /// Enters an existing network namespace.
    EnterNetwork(OwnedFd),
    /// Enables loopback in the run's network namespace, listens on a port and sends the socket to the host.
    Listen { port: u16 },
    /// Enters an existing user namespace with a written id map, which for root only the parent can write.
    EnterUser(OwnedFd),
    /// Enters an existing mount namespace. Its root becomes the root and the working directory.
    EnterMounts(std::sync::Arc<OwnedFd>),
    /// Sets the host name.
    HostName(&'static [u8]),
    /// Detaches the mount namespace from the host's propagation.
    PrivateMounts,
    /// Mounts a file system.
    Mount { kind: &'static CStr, target: CString, options: CString, flags: MountFlags },
    /// Creates a directory.
    Directory { path: CString, mode: u32 },
    /// Creates a file with content.
    File { path: CString, content: Vec<u8> },
    /// Makes a file executable.
    Executable(CString),
    /// Creates a symbolic link.
    Link { path: CString, target: CString },
    /// Mounts a host path at a target, with all submounts.
    Bind { source: CString, target: CString, attributes: u64 },
    /// Attaches a detached mount of the host.
    Attach { tree: OwnedFd, target: CString },
    /// Mounts a directory of this mount namespace, with submounts, in another one, and enters that.
    Carry { source: CString, attributes: u64, mounts: OwnedFd, target: CString },
    /// Fails if a path is not the file that the host saw.
    Verify { path: CString, device: u64, inode: u64 },
    /// Changes the attributes of one mount.
    Attributes { path: CString, attributes: u64 },
    /// Makes the root file system read-only through every mount.
    Freeze,
    /// Makes the working directory the root; the old root is beneath.
    Pivot { old: CString },
    /// Removes the old root from the namespace.
    DetachOld { old: CString },
    /// Sends the directory to the host.
    SendDirectory(CString),
    /// Waits until the host has added its files.
    Await {
        /// The host's process, whose end ends the wait.
        host: Option<OwnedFd>,
    },
    /// Changes the working directory.
    Enter(CString),
    /// Switches to another user, without groups.
    Identity { user: u32, group: u32, dumpable: bool },
    /// Limits a resource: soft and hard.
    Limit { resource: Resource, soft: u64, hard: u64 },
    /// Keeps the capabilities of its user namespace across exec: a zygote creates sandboxes with them.
    KeepCapabilities,
    /// Drops the capabilities that could be regained.
    DropBounding,
    /// Drops all other capabilities.
    DropCapabilities,
    /// Makes `CAP_SYS_CHROOT` inheritable.
    InheritRootChange,
    /// Drops all capabilities except `CAP_SYS_CHROOT`, which the next program inherits.
    KeepRootChange,
    /// Sends the mount namespace to the host. The descriptor is the host's `/proc`.
    SendMounts(OwnedFd),
    /// Restores whether the memory, which may be the host's, is dumpable.
    Dumpable(bool),
    /// Prevents all later programs from gaining privileges.
    NoNewPrivileges,
    /// Restricts files, TCP, sockets and signals.
    Landlock(Landlock),
    /// Restricts system calls.
    Seccomp(std::sync::Arc<[libc::sock_filter]>),
    /// Restricts system calls and sends the host the listener on which the kernel reports them.
    SeccompNotify(std::sync::Arc<[libc::sock_filter]>),
    /// Starts a new session without a terminal.
    ///
    /// In a process namespace its first process dies with the host's thread. Otherwise it must survive to
    /// kill the others, and detects the host's end on the control socket.
    Session { dies_with_host: bool },
    /// Places the descriptors and closes all others.
    Descriptors {
        stdio: [OwnedFd; 3],
        value: Option<OwnedFd>,
        code: Option<OwnedFd>,
        program: OwnedFd,
        /// The `cgroup.kill` of the run, for the first process alone.
        kill: Option<OwnedFd>,
        /// The maximum number of open descriptors, where the kernel cannot close a range.
        one_by_one: Option<u32>,
    },
    /// Executes the first process.
    Exec { arguments: Pointers, environment: Pointers },
    /// Exits successfully: the sandbox works.
    Exit,
}

impl Step {
    /// Waits for a message of the host, until its process ends.
    pub(super) fn wait_for_host() -> Self {
        let own = rustix::process::getpid();
        let host = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty());
        Self::Await { host: host.ok().and_then(|host| super::launch::high(host).ok()) }
    }

    /// The name for error messages.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Join(_) => "join cgroup",
            Self::Write { path, .. } if path.to_bytes().starts_with(QUOTA_PLACE.as_bytes()) => "set quotas",
            Self::Write { .. } => "map identities",
            Self::Unshare(_) => "unshare",
            Self::EnterNetwork(_) => "enter network namespace",
            Self::Listen { .. } => "open egress port",
            Self::EnterUser(_) => "enter user namespace",
            Self::EnterMounts(_) => "enter mount namespace",
            Self::HostName(_) => "set host name",
            Self::PrivateMounts => "make mounts private",
            Self::Mount { .. } => "mount",
            Self::Directory { .. } => "create directory",
            Self::File { .. } => "create file",
            Self::Executable(_) => "make executable",
            Self::Link { .. } => "create link",
            Self::Bind { .. } => "bind path",
            Self::Attach { .. } | Self::Carry { .. } => "attach workspace",
            Self::Verify { .. } => "verify path",
            Self::Attributes { .. } => "set mount attributes",
            Self::Freeze => "make root read-only",
            Self::Pivot { .. } => "change root",
            Self::DetachOld { .. } => "detach old root",
            Self::SendDirectory(_) => "send workspace",
            Self::Await { .. } => "wait for files",
            Self::Enter(_) => "enter workspace",
            Self::Identity { .. } => "change identity",
            Self::Limit { .. } => "limit resources",
            Self::KeepCapabilities => "keep capabilities",
            Self::DropBounding | Self::DropCapabilities | Self::InheritRootChange | Self::KeepRootChange => {
                "drop capabilities"
            }
            Self::SendMounts(_) => "send mount namespace",
            Self::Dumpable(_) => "restore dumpable",
            Self::NoNewPrivileges => "set no new privileges",
            Self::Landlock(_) => "enforce landlock",
            Self::Seccomp(_) | Self::SeccompNotify(_) => "enforce seccomp",
            Self::Session { .. } => "start session",
            Self::Descriptors { .. } => "place descriptors",
            Self::Exec { .. } => "start first process",
            Self::Exit => "exit",
        }
    }

    /// The path or value of the step, for error messages.
    pub(super) fn subject(&self) -> Option<String> {
        let path = match self {
            Self::Write { path, .. }
            | Self::Directory { path, .. }
            | Self::File { path, .. }
            | Self::Link { path, .. }
            | Self::Verify { path, .. }
            | Self::Attributes { path, .. }
            | Self::Executable(path)
            | Self::SendDirectory(path)
            | Self::Enter(path) => path,
            Self::Mount { target, .. }
            | Self::Bind { target, .. }
            | Self::Carry { target, .. }
            | Self::Attach { target, .. } => target,
            _ => return None,
        };
        Some(path.to_string_lossy().into_owned())
    }
}

/// Strings with the array of pointers that exec needs.
#[derive(Debug)]
pub(super) struct Pointers {
    /// The strings that the pointers reference.
    _strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl Pointers {
    pub(super) fn new(strings: Vec<CString>) -> Self {
        let pointers = strings.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
        Self { _strings: strings, pointers }
    }
}

/// Performs the steps and never returns. On failure, sends the host the step's index and the error.
pub(super) fn perform_all(steps: &[Step], control: BorrowedFd<'_>) -> ! {
    let mut control = control;
    // The host's umask must affect neither the private root nor the program's files.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    for (index, step) in steps.iter().enumerate() {
        if let Err(error) = perform(step, control) {
            let error = error.raw_os_error().unsigned_abs();
            let message = [u64::from(b'E'), index as u64, u64::from(error), 0, 0, 0];
            send(control, &message, None);
            exit(1);
        }
        if matches!(step, Step::Descriptors { .. }) {
            // SAFETY: the step has just put the control socket there, and nothing closes it before exec.
            control = unsafe { BorrowedFd::borrow_raw(CONTROL) };
        }
    }
    exit(0)
}

fn exit(status: i32) -> ! {
    // SAFETY: ends this process at once; no destructor or handler of the host's copy runs.
    unsafe { libc::_exit(status) }
}

/// Sends a message with an optional descriptor.
fn send(control: BorrowedFd<'_>, message: &[u64; 6], descriptor: Option<BorrowedFd<'_>>) -> bool {
    let mut bytes = [0u8; 48];
    for (target, number) in bytes.chunks_exact_mut(8).zip(message) {
        target.copy_from_slice(&number.to_ne_bytes());
    }
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let list = descriptor.map(|descriptor| [descriptor]);
    if let Some(list) = &list
        && !ancillary.push(SendAncillaryMessage::ScmRights(list))
    {
        return false;
    }
    rustix::net::sendmsg(control, &[std::io::IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)
        .is_ok()
}

/// Calls prctl with plain numbers.
fn prctl(option: i32, first: u64, second: u64, third: u64) -> Result<(), Errno> {
    // SAFETY: every caller passes an option that takes numbers, or a pointer that lives during the call.
    check(unsafe { libc::syscall(libc::SYS_prctl, option, first, second, third, 0u64) }).map(|_| ())
}

/// Sets the attributes of the mount at a path.
pub(super) fn set_attributes(
    directory: BorrowedFd<'_>,
    path: &CStr,
    flags: i32,
    attributes: &MountAttributes,
) -> Result<(), Errno> {
    let size = size_of::<MountAttributes>();
    // SAFETY: path and structure live during the call, and the size is the structure's.
    check(unsafe {
        libc::syscall(libc::SYS_mount_setattr, directory.as_raw_fd(), path.as_ptr(), flags, attributes, size)
    })
    .map(|_| ())
}

const EMPTY_PATH: i32 = 0x1000;
const RECURSIVE: i32 = 0x8000;
/// The number of `CAP_SYS_CHROOT`.
const CAP_SYS_CHROOT: u32 = 18;

fn perform(step: &Step, control: BorrowedFd<'_>) -> Result<(), Errno> {
    match step {
        Step::Join(tasks) => rustix::io::write(tasks, b"0").map(|_| ()),
        Step::Write { path, text } => {
            let file = rustix::fs::open(path.as_c_str(), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            rustix::io::write(&file, text).map(|_| ())
        }
        // SAFETY: this process has one thread and shares nothing that it relies on.
        Step::Unshare(flags) => check(unsafe { libc::syscall(libc::SYS_unshare, *flags) }).map(|_| ()),
        Step::EnterNetwork(namespace) => enter(namespace, libc::CLONE_NEWNET),
        Step::Listen { port } => listen(*port, control),
        Step::EnterUser(namespace) => enter(namespace, libc::CLONE_NEWUSER),
        Step::EnterMounts(namespace) => enter(namespace, libc::CLONE_NEWNS),
        Step::HostName(name) => rustix::system::sethostname(name),
        Step::PrivateMounts => {
            rustix::mount::mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        }
        Step::Mount { kind, target, options, flags } => {
            rustix::mount::mount(*kind, target.as_c_str(), *kind, *flags, options.as_c_str())
        }
        Step::Directory { path, mode } => rustix::fs::mkdir(path.as_c_str(), Mode::from_raw_mode(*mode)),
        Step::File { path, content } => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::open(path.as_c_str(), flags, Mode::from_raw_mode(0o644))?;
            let mut rest = content.as_slice();
            while !rest.is_empty() {
                let written = rustix::io::write(&file, rest)?;
                rest = rest.get(written..).unwrap_or_default();
            }
            Ok(())
        }
        Step::Executable(path) => rustix::fs::chmod(path.as_c_str(), Mode::from_raw_mode(0o755)),
        Step::Link { path, target } => rustix::fs::symlink(target.as_c_str(), path.as_c_str()),
        Step::Bind { source, target, attributes } => {
            rustix::mount::mount_bind_recursive(source.as_c_str(), target.as_c_str())?;
            if *attributes == 0 {
                return Ok(());
            }
            let attributes =
                MountAttributes { set: *attributes, clear: 0, propagation: 0, user_namespace: 0 };
            set_attributes(CWD, target, RECURSIVE, &attributes)
        }
        Step::Attach { tree, target } => attach(tree, target),
        Step::Carry { source, attributes, mounts, target } => {
            use rustix::mount::OpenTreeFlags;
            let flags = OpenTreeFlags::OPEN_TREE_CLONE
                | OpenTreeFlags::OPEN_TREE_CLOEXEC
                | OpenTreeFlags::AT_RECURSIVE;
            let tree = rustix::mount::open_tree(CWD, source.as_c_str(), flags)?;
            let attributes = MountAttributes {
                set: *attributes,
                clear: 0,
                propagation: MountPropagationFlags::PRIVATE.bits().into(),
                user_namespace: 0,
            };
            set_attributes(tree.as_fd(), c"", EMPTY_PATH | RECURSIVE, &attributes)?;
            enter(mounts, libc::CLONE_NEWNS)?;
            attach(&tree, target)
        }
        Step::Verify { path, device, inode } => {
            let found = rustix::fs::lstat(path.as_c_str())?;
            if (found.st_dev, found.st_ino) == (*device, *inode) { Ok(()) } else { Err(Errno::STALE) }
        }
        Step::Attributes { path, attributes } => {
            let attributes =
                MountAttributes { set: *attributes, clear: 0, propagation: 0, user_namespace: 0 };
            set_attributes(CWD, path, 0, &attributes)
        }
        Step::Freeze => {
            let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
            rustix::mount::mount_remount(c"/", flags, c"")
        }
        Step::Pivot { old } => {
            rustix::process::pivot_root(c".", old.as_c_str())?;
            rustix::process::chdir(c"/")
        }
        Step::DetachOld { old } => {
            rustix::mount::unmount(old.as_c_str(), UnmountFlags::DETACH)?;
            rustix::fs::rmdir(old.as_c_str())
        }
        Step::SendDirectory(path) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let directory = rustix::fs::open(path.as_c_str(), flags, Mode::empty())?;
            let message = [u64::from(b'W'), 0, 0, 0, 0, 0];
            if send(control, &message, Some(directory.as_fd())) { Ok(()) } else { Err(Errno::PIPE) }
        }
        Step::Await { host } => {
            // The host's end of the socket alone does not show its death: this child and others have copies of it.
            while let Some(host) = host {
                let mut ready = [PollFd::new(&control, PollFlags::IN), PollFd::new(host, PollFlags::IN)];
                match poll(&mut ready, None) {
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error),
                    Ok(_) if ready.first().is_some_and(|control| !control.revents().is_empty()) => break,
                    Ok(_) => return Err(Errno::PIPE),
                }
            }
            let mut byte = [0u8; 1];
            match rustix::io::read(control, &mut byte)? {
                0 => Err(Errno::PIPE),
                _ => Ok(()),
            }
        }
        Step::Enter(path) => rustix::process::chdir(path.as_c_str()),
        Step::Identity { user, group, dumpable } => {
            use rustix::process::{Gid, Uid};
            rustix::thread::set_thread_groups(&[])?;
            let (user, group) = (Uid::from_raw(*user), Gid::from_raw(*group));
            rustix::thread::set_thread_res_gid(group, group, group)?;
            rustix::thread::set_thread_res_uid(user, user, user)?;
            // The kernel has marked the memory as not dumpable, and it may be the host's own.
            prctl(libc::PR_SET_DUMPABLE, u64::from(*dumpable), 0, 0)
        }
        Step::Limit { resource, soft, hard } => {
            let limit = libc::rlimit64 { rlim_cur: *soft, rlim_max: *hard };
            // SAFETY: the structure lives during the call; the old value is not asked for.
            check(unsafe {
                libc::syscall(libc::SYS_prlimit64, 0, *resource, &raw const limit, std::ptr::null::<u8>())
            })
            .map(|_| ())
        }
        Step::KeepCapabilities => {
            let header = [0x2008_0522u32, 0];
            // Twice: effective, permitted, inheritable.
            let mut sets = [0u32; 6];
            // SAFETY: header and sets have the size that version 3 requires, and live during the calls.
            check(unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) })?;
            (sets[2], sets[5]) = (sets[1], sets[4]);
            // SAFETY: as above.
            check(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) })?;
            for capability in 0..64u64 {
                let half = if capability < 32 { sets[1] } else { sets[4] };
                if half & (1 << (capability % 32)) != 0 {
                    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE as u64, capability, 0)?;
                }
            }
            Ok(())
        }
        Step::DropBounding => {
            // Until the kernel reports an unknown capability. Without the right to drop, the set cannot
            // restore anything, because no new privileges are allowed.
            for capability in 0..64 {
                match prctl(libc::PR_CAPBSET_DROP, capability, 0, 0) {
                    Ok(()) => {}
                    Err(Errno::INVAL | Errno::PERM) => break,
                    Err(error) => return Err(error),
                }
            }
            prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as u64, 0, 0)
        }
        Step::DropCapabilities => {
            let header = [0x2008_0522u32, 0];
            let none = [0u32; 6];
            // SAFETY: header and sets have the size that version 3 requires, and live during the call.
            check(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) }).map(|_| ())
        }
        Step::InheritRootChange => {
            let header = [0x2008_0522u32, 0];
            let mut sets = [0u32; 6];
            // SAFETY: header and sets have the size that version 3 requires, and live during the calls.
            check(unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) })?;
            sets[2] |= 1 << CAP_SYS_CHROOT;
            // SAFETY: as above.
            check(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) }).map(|_| ())
        }
        Step::KeepRootChange => {
            let header = [0x2008_0522u32, 0];
            let only = [0u32, 1 << CAP_SYS_CHROOT, 1 << CAP_SYS_CHROOT, 0, 0, 0];
            // SAFETY: header and sets have the size that version 3 requires, and live during the call.
            check(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), only.as_ptr()) })?;
            prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE as u64, u64::from(CAP_SYS_CHROOT), 0)
        }
        Step::SendMounts(processes) => {
            let namespace = rustix::fs::openat(
                processes,
                c"thread-self/ns/mnt",
                OFlags::RDONLY | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            let message = [u64::from(b'M'), 0, 0, 0, 0, 0];
            if send(control, &message, Some(namespace.as_fd())) { Ok(()) } else { Err(Errno::PIPE) }
        }
        Step::Dumpable(dumpable) => prctl(libc::PR_SET_DUMPABLE, u64::from(*dumpable), 0, 0),
        Step::NoNewPrivileges => prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0),
        Step::Landlock(landlock) => {
            let rules = landlock.build()?;
            Landlock::enforce(&rules)
        }
        Step::Seccomp(filter) => {
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
            // SAFETY: the kernel copies the filter during the call; it lives as long as the step.
            check(unsafe { libc::syscall(libc::SYS_seccomp, 1u32, 0u32, &raw const program) }).map(|_| ())
        }
        Step::SeccompNotify(filter) => {
            const NEW_LISTENER: u32 = 8;
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
            // SAFETY: as above.
            let result = unsafe { libc::syscall(libc::SYS_seccomp, 1u32, NEW_LISTENER, &raw const program) };
            let listener = check(result)?;
            // SAFETY: the kernel has just made this descriptor; it is closed with all others before the program runs.
            let listener = unsafe { BorrowedFd::borrow_raw(listener) };
            let message = [u64::from(b'N'), 0, 0, 0, 0, 0];
            if send(control, &message, Some(listener)) { Ok(()) } else { Err(Errno::PIPE) }
        }
        Step::Session { dies_with_host } => {
            rustix::process::setsid()?;
            if *dies_with_host { prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64, 0, 0) } else { Ok(()) }
        }
        Step::Descriptors { stdio, value, code, program, kill, one_by_one } => {
            for (number, descriptor) in (0..).zip(stdio) {
                place(descriptor, number, 0)?;
            }
            if control.as_raw_fd() != CONTROL {
                place_raw(control.as_raw_fd(), CONTROL, 0)?;
            }
            if let Some(value) = value {
                place(value, VALUE, 0)?;
            }
            if let Some(code) = code {
                place(code, CODE, 0)?;
            }
            place(program, PROGRAM, libc::O_CLOEXEC)?;
            // Descriptors that were not placed must be closed too.
            if value.is_none() {
                close(VALUE);
            }
            if code.is_none() {
                close(CODE);
            }
            match kill {
                Some(kill) => place(kill, KILL, 0)?,
                None => close(KILL),
            }
            if let Some(most) = one_by_one {
                for number in (KILL + 1)..i32::try_from(*most).unwrap_or(i32::MAX) {
                    close(number);
                }
                return Ok(());
            }
            // SAFETY: nothing of this process uses a descriptor above; the owners never run their destructors.
            check(unsafe { libc::syscall(libc::SYS_close_range, KILL + 1, u32::MAX, 0u32) }).map(|_| ())
        }
        Step::Exec { arguments, environment } => {
            // SAFETY: both arrays end in a null pointer and point to strings that end in a NUL.
            check(unsafe {
                libc::syscall(
                    libc::SYS_execveat,
                    PROGRAM,
                    c"".as_ptr(),
                    arguments.pointers.as_ptr(),
                    environment.pointers.as_ptr(),
                    libc::AT_EMPTY_PATH,
                )
            })
            .map(|_| ())
        }
        Step::Exit => exit(0),
    }
}

/// The backlog of the listener; the kernel may lower it.
const BACKLOG: i32 = 1024;

fn listen(port: u16, control: BorrowedFd<'_>) -> Result<(), Errno> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let any = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: plain memory; the name ends in a NUL.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, letter) in request.ifr_name.iter_mut().zip(b"lo") {
        *place = *letter as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the structure lives during the call and has the type that this request takes.
    check(unsafe {
        libc::syscall(
            libc::SYS_ioctl,
            any.as_raw_fd(),
            libc::SIOCSIFFLAGS as libc::c_ulong,
            &raw const request,
        )
    })?;
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let address = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, port);
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    let message = [u64::from(b'L'), 0, 0, 0, 0, 0];
    if send(control, &message, Some(socket.as_fd())) { Ok(()) } else { Err(Errno::PIPE) }
}

fn attach(tree: &OwnedFd, target: &CStr) -> Result<(), Errno> {
    rustix::mount::move_mount(tree, c"", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// A namespace, or a process in one of this kind.
fn enter(namespace: &OwnedFd, kind: i32) -> Result<(), Errno> {
    // SAFETY: this process has one thread; the kernel checks the kind.
    check(unsafe { libc::syscall(libc::SYS_setns, namespace.as_raw_fd(), kind) }).map(|_| ())
}

fn place(descriptor: &OwnedFd, number: RawFd, flags: i32) -> Result<(), Errno> {
    place_raw(descriptor.as_raw_fd(), number, flags)
}

/// Source descriptors have high numbers, so that no target is overwritten before it is read.
fn place_raw(descriptor: RawFd, number: RawFd, flags: i32) -> Result<(), Errno> {
    // SAFETY: no owner in this process has the target number any more.
    check(unsafe { libc::syscall(libc::SYS_dup3, descriptor, number, flags) }).map(|_| ())
}

fn close(number: RawFd) {
    // SAFETY: no owner in this process has the number any more; closing a number that is not open does no harm.
    unsafe { libc::syscall(libc::SYS_close, number) };
}
