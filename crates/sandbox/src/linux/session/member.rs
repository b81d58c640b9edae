//! A member of a shared sandbox: one interpreter that runs cells, with the host's ends of its sockets and
//! pipes.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::super::files::{self, Directory, Listing};
use super::super::prepare::setup;
use super::super::{kernel, temporary, tree};
use super::copy;
use super::frame::{self, Nonce};
use super::roots::{self, Root};
use super::shared_sandbox::{MemberSlot, Packet, SharedSandbox, buffer, receive, socket_pair, wait_for};
use crate::running::Pipes;
use crate::{Error, Language, Sandbox, Workspace};

/// The time that a fork has to start; `os.register_at_fork` code may hang.
const FORK_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum fork depth. Each fork adds a Landlock domain, and the kernel allows 16.
const MAX_DEPTH: usize = 12;

/// The freezer of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frozen {
    No,
    /// By freezing the shared cgroup.
    Group,
    /// By stopping each of its processes.
    Signal,
}

/// An interpreter with its descriptors. Dropping it kills it and everything that it started, except its
/// forks.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) shared: Arc<SharedSandbox>,
    pub(super) socket: OwnedFd,
    pub(super) pid: i32,
    pub(super) pidfd: Arc<OwnedFd>,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    /// The workspace; none for a read-only host directory.
    directory: Option<Arc<Directory>>,
    /// Its private root, if it is a fork.
    pub(super) root: Option<Root>,
    /// The workspace after the last cell.
    pub(super) before: Listing,
    depth: usize,
    /// Is the only member, without a zygote; a reset then replaces the sandbox.
    is_single: bool,
    stopped: Frozen,
    pub(super) fork_time: Duration,
    /// The kernel's counters after the last cell: processes killed for memory, and processes denied.
    pub(super) counted: (u64, u64),
    _seat: MemberSlot,
}

/// The result of a fork.
struct Forked {
    socket: OwnedFd,
    pid: i32,
    pidfd: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    time: Duration,
}

/// Creates an unguessable request id.
pub(super) fn nonce() -> Result<Nonce, Error> {
    let mut nonce = Nonce::default();
    rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| setup("name a request")(error.into()))?;
    Ok(nonce)
}

fn output() -> Result<(OwnedFd, OwnedFd), Error> {
    let fail = |error: rustix::io::Errno| setup("create pipes")(error.into());
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(fail)?;
    rustix::io::ioctl_fionbio(&read, true).map_err(fail)?;
    Ok((read, write))
}

fn failed(reason: impl Into<String>) -> Error {
    setup("fork interpreter")(io::Error::other(reason.into()))
}

/// Requests a fork from an interpreter.
fn fork(shared: &SharedSandbox, asked: &OwnedFd, root: Option<&Root>) -> Result<Forked, Error> {
    let (socket, inside) = socket_pair()?;
    let (stdout, stdout_inside) = output()?;
    let (stderr, stderr_inside) = output()?;
    let nonce = nonce()?;
    let mut descriptors = vec![inside.as_fd(), stdout_inside.as_fd(), stderr_inside.as_fd()];
    descriptors.extend(root.map(|root| root.directory.as_fd()));
    let begin = Instant::now();
    send(asked, &frame::encode(frame::request::FORK, &nonce, &[]), &descriptors)?;
    drop((inside, stdout_inside, stderr_inside));
    let until = begin + FORK_TIMEOUT;
    let mut buffer = buffer();
    let pid = loop {
        if Instant::now() >= until || shared.termination().is_some() {
            return Err(failed("the fork timed out"));
        }
        if !wait_for(socket.as_fd(), PollFlags::IN, Duration::from_millis(50)) {
            refusal(asked, &nonce, &mut buffer)?;
            continue;
        }
        match receive(&socket, &mut buffer) {
            Packet::From(size, sender) => {
                let frame = buffer.get(..size).and_then(frame::decode);
                match frame.filter(|frame| frame.letter == frame::reply::HELLO) {
                    Some(frame) if frame.payload.is_empty() => break sender,
                    Some(frame) => {
                        let reason = String::from_utf8_lossy(frame.payload);
                        return Err(failed(crate::level::shorten(&reason)));
                    }
                    None => return Err(failed("the fork sent no greeting")),
                }
            }
            Packet::Nothing => {}
            Packet::End => {
                refusal(asked, &nonce, &mut buffer)?;
                return Err(failed("the fork died at once"));
            }
        }
    };
    let time = begin.elapsed();
    // Read the answer now; a later request would drop it.
    if wait_for(asked.as_fd(), PollFlags::IN, FORK_TIMEOUT) {
        refusal(asked, &nonce, &mut buffer)?;
    }
    let process = Pid::from_raw(pid).ok_or_else(|| failed("the fork has no pid"))?;
    let pidfd = pidfd_open(process, PidfdFlags::empty()).map_err(|error| failed(error.to_string()))?;
    // The kernel named the sender; verify that it is alive and in this sandbox.
    if !tree::descendants(shared.pid).contains(&pid) {
        return Err(failed("the fork died at once"));
    }
    Ok(Forked { socket, pid, pidfd, stdout, stderr, time })
}

/// Reads the interpreter's answer to a fork request and returns a failure as an error.
fn refusal(asked: &OwnedFd, nonce: &Nonce, buffer: &mut [u8]) -> Result<(), Error> {
    for _ in 0..frame::MAX_STRAY {
        let Packet::From(size, _) = receive(asked, buffer) else { break };
        let frame = buffer.get(..size).and_then(frame::decode);
        if let Some(frame) = frame.filter(|frame| frame.nonce == *nonce && !frame.payload.is_empty()) {
            let reason = String::from_utf8_lossy(frame.payload);
            return Err(failed(crate::level::shorten(&reason)));
        }
    }
    Ok(())
}

/// Sends a packet with at most 16 descriptors.
pub(super) fn send(socket: &OwnedFd, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(failed("too many descriptors"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[io::IoSlice::new(packet)], &mut ancillary, flags)
        .map(|_| ())
        .map_err(|error| failed(error.to_string()))
}

impl Member {
    /// The first member of a shared sandbox.
    pub(super) fn first(
        shared: &Arc<SharedSandbox>,
        directory: Option<Arc<Directory>>,
        before: Listing,
    ) -> Result<Self, Error> {
        let seat = MemberSlot::take(shared)?;
        let born = {
            let zygote = shared.zygote.lock().unwrap_or_else(PoisonError::into_inner);
            fork(shared, &zygote, None)?
        };
        Ok(Self::new(born, seat, shared, directory, None, before, 1))
    }

    /// The only member of a sandbox without zygote: its main program.
    pub(super) fn only(
        shared: &Arc<SharedSandbox>,
        socket: OwnedFd,
        pipes: Pipes,
        directory: Option<Arc<Directory>>,
        before: Listing,
    ) -> Result<Self, Error> {
        let seat = MemberSlot::take(shared)?;
        let fail = setup("start interpreter");
        let pid = shared.zygote_pid;
        let process = Pid::from_raw(pid).ok_or_else(|| failed("the interpreter has no pid"))?;
        let pidfd = pidfd_open(process, PidfdFlags::empty()).map_err(|error| fail(error.into()))?;
        if !tree::descendants(shared.pid).contains(&pid) {
            return Err(failed("the interpreter died at once"));
        }
        let (stdout, stderr) = (OwnedFd::from(pipes.stdout), OwnedFd::from(pipes.stderr));
        for stream in [&stdout, &stderr] {
            rustix::io::ioctl_fionbio(stream, true).map_err(|error| fail(error.into()))?;
        }
        let born = Forked { socket, pid, pidfd, stdout, stderr, time: Duration::ZERO };
        let mut member = Self::new(born, seat, shared, directory, None, before, 1);
        member.is_single = true;
        Ok(member)
    }

    fn new(
        born: Forked,
        seat: MemberSlot,
        shared: &Arc<SharedSandbox>,
        directory: Option<Arc<Directory>>,
        root: Option<Root>,
        before: Listing,
        depth: usize,
    ) -> Self {
        let Forked { socket, pid, pidfd, stdout, stderr, time } = born;
        shared.pids.lock().unwrap_or_else(PoisonError::into_inner).insert(pid);
        Self {
            shared: Arc::clone(shared),
            socket,
            pid,
            pidfd: Arc::new(pidfd),
            stdout,
            stderr,
            directory,
            root,
            before,
            depth,
            is_single: false,
            stopped: Frozen::No,
            fork_time: time,
            counted: (shared.group.memory_kills(), shared.group.refused_processes()),
            _seat: seat,
        }
    }

    /// Whether another fork would be too deep.
    pub(super) fn is_deepest(&self) -> bool {
        self.depth >= MAX_DEPTH
    }

    /// Forks this interpreter into its new root.
    pub(super) fn fork(&mut self, root: Root) -> Result<Self, Error> {
        let seat = MemberSlot::take(&self.shared)?;
        let born = fork(&self.shared, &self.socket, Some(&root))?;
        let descriptor =
            super::super::launch::duplicate(root.workspace.as_fd()).map_err(setup("keep workspace"))?;
        let directory = Arc::new(Directory::new(descriptor));
        let before = files::list(directory.descriptor.as_fd());
        let depth = self.depth + 1;
        Ok(Self::new(born, seat, &self.shared, Some(directory), Some(root), before, depth))
    }

    /// Kills the interpreter with everything that it started, and replaces it.
    pub(super) fn reset(&mut self, fresh: bool) -> Result<(), Error> {
        self.thaw();
        if let Some(reason) = self.shared.termination().map(|termination| termination.reason.clone()) {
            return Err(Error::SessionEnded { reason });
        }
        if self.is_single {
            return self.replace_sandbox(fresh);
        }
        self.kill();
        if self.shared.members.load(Ordering::SeqCst) == 1 {
            // Orphans of this member belong to no other.
            let zygote = BTreeSet::from([self.shared.zygote_pid]);
            kill_all(&|| tree::descendants_without(self.shared.pid, &zygote));
        }
        if fresh {
            if let Some(directory) = &self.directory {
                temporary::empty(directory.descriptor.as_fd());
            }
            if self.shared.facts.namespaces.is_ok()
                && let Ok(tmp) = roots::tmp(self)
            {
                temporary::empty(tmp.as_fd());
            }
        }
        let born = {
            let zygote = self.shared.zygote.lock().unwrap_or_else(PoisonError::into_inner);
            fork(&self.shared, &zygote, self.root.as_ref())?
        };
        let mut pids = self.shared.pids.lock().unwrap_or_else(PoisonError::into_inner);
        pids.remove(&self.pid);
        pids.insert(born.pid);
        drop(pids);
        let Forked { socket, pid, pidfd, stdout, stderr, time } = born;
        self.fork_time = time;
        (self.socket, self.pid, self.pidfd) = (socket, pid, Arc::new(pidfd));
        (self.stdout, self.stderr) = (stdout, stderr);
        self.before = self.list();
        Ok(())
    }

    /// Replaces the shared sandbox, with the files of its workspace.
    fn replace_sandbox(&mut self, fresh: bool) -> Result<(), Error> {
        let (sandbox, language, limits) = &self.shared.start;
        // The first files are in the workspace already, or were deleted with it.
        let sandbox = Sandbox { files: Vec::new(), ..sandbox.clone() };
        self.shared.end();
        let next = super::shared_sandbox::start(&sandbox, *language, limits)?;
        if let (Some(from), Some(to)) = (&self.directory, &next.directory) {
            let is_same = matches!(sandbox.workspace, Workspace::Host(_) | Workspace::LiveHost(_));
            if is_same && fresh {
                temporary::empty(to.descriptor.as_fd());
            } else if !is_same && !fresh {
                copy::tree(from.descriptor.as_fd(), to.descriptor.as_fd(), next.shared.owner)
                    .map_err(|reason| failed(format!("copying the files failed: {reason}")))?;
            }
        }
        *self = next;
        self.before = self.list();
        Ok(())
    }

    /// The writable workspace directory.
    pub(super) fn directory(&self, action: &'static str) -> Result<&Arc<Directory>, Error> {
        self.directory.as_ref().ok_or_else(|| Error::SessionRejected {
            action,
            reason: "the workspace is a read-only host directory".into(),
            hint: "use the directory itself, or a fresh workspace",
        })
    }

    pub(super) fn workspace(&self) -> Option<&Arc<Directory>> {
        self.directory.as_ref()
    }

    /// Shows the interpreter the changes of others in a host directory since the last cell.
    pub(super) fn refresh(&mut self) {
        let mut layer = self.shared.layer.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(layer), Some(directory)) = (layer.as_mut(), &self.directory) else { return };
        layer.refresh(directory.descriptor.as_fd(), self.shared.owner);
        self.before = files::list(directory.descriptor.as_fd());
    }

    /// Lists the workspace.
    pub(super) fn list(&self) -> Listing {
        let Some(directory) = &self.directory else { return Listing::default() };
        files::list(directory.descriptor.as_fd())
    }

    /// Whether the interpreter is dead.
    pub(super) fn is_dead(&self) -> bool {
        wait_for(self.pidfd.as_fd(), PollFlags::IN, Duration::ZERO)
    }

    /// The interpreter's status, as `wait` returns it. None while unknown: another process may have reaped
    /// it.
    pub(super) fn status(&self) -> Option<i32> {
        let of_main = || {
            self.shared.termination().and_then(|termination| termination.status).filter(|_| self.is_single)
        };
        self.status_of_zombie().or_else(|| kernel::exit_status(self.pidfd.as_fd())).or_else(of_main)
    }

    fn status_of_zombie(&self) -> Option<i32> {
        // The last number; the name in parentheses may contain anything.
        let stat =
            std::fs::read_to_string(Path::new("/proc").join(self.pid.to_string()).join("stat")).ok()?;
        let (_, numbers) = stat.rsplit_once(") ")?;
        let mut numbers = numbers.split_whitespace();
        if numbers.next() != Some("Z") {
            return None;
        }
        numbers.nth(48)?.parse().ok()
    }

    /// The reason why it cannot run another cell, if it cannot.
    pub(super) fn ended(&self) -> Option<String> {
        if !self.is_dead() {
            return None;
        }
        let termination = self.shared.termination().filter(|termination| !termination.reason.is_empty());
        Some(
            termination
                .map_or_else(|| "its interpreter ended".to_owned(), |termination| termination.reason.clone()),
        )
    }

    /// The processes of this member, the interpreter first, without its forks.
    fn processes(&self) -> Vec<i32> {
        let mut others = self.shared.pids.lock().unwrap_or_else(PoisonError::into_inner).clone();
        others.remove(&self.pid);
        tree::descendants_without(self.pid, &others)
    }

    /// Whether the interpreter reads interrupt packets during a cell. Python can only be interrupted by a signal.
    pub(super) fn reads_interrupts(&self) -> bool {
        self.shared.start.1 == Language::JavaScript
    }

    /// Sends the interpreter a signal.
    pub(super) fn signal(&self, signal: Signal) {
        tree::signal(self.pidfd.as_fd(), self.pid, signal);
    }

    /// Kills it with everything that it started.
    pub(super) fn kill(&self) {
        if self.shared.termination().is_some() {
            return;
        }
        if !self.is_dead() {
            // Frozen first, so that it starts no further process.
            self.signal(Signal::STOP);
            kill_all(&|| self.processes());
            self.signal(Signal::KILL);
            wait_for(self.pidfd.as_fd(), PollFlags::IN, Duration::from_millis(500));
        }
        kill_all(&|| self.orphans());
    }

    /// Orphaned processes of this member: they use its workspace and descend from no other member.
    fn orphans(&self) -> Vec<i32> {
        let Some(directory) = &self.directory else { return Vec::new() };
        let mut others = self.shared.pids.lock().unwrap_or_else(PoisonError::into_inner).clone();
        others.extend([self.pid, self.shared.zygote_pid]);
        roots::users(&self.shared, directory.descriptor.as_fd(), &others)
    }

    pub(super) fn freeze(&mut self) {
        if self.stopped != Frozen::No || self.is_dead() {
            return;
        }
        let is_alone = self.shared.members.load(Ordering::SeqCst) == 1;
        if is_alone && self.shared.group.freeze(true) {
            self.stopped = Frozen::Group;
            return;
        }
        self.signal(Signal::STOP);
        signal_all(&self.processes(), Signal::STOP);
        self.stopped = Frozen::Signal;
    }

    pub(super) fn thaw(&mut self) {
        match std::mem::replace(&mut self.stopped, Frozen::No) {
            Frozen::No => {}
            Frozen::Group => {
                self.shared.group.freeze(false);
            }
            Frozen::Signal => {
                signal_all(&self.processes(), Signal::CONT);
                self.signal(Signal::CONT);
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.thaw();
        if self.shared.members.load(Ordering::SeqCst) <= 1 {
            self.shared.end();
        } else {
            self.kill();
        }
        self.shared.pids.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.pid);
    }
}

fn signal_all(pids: &[i32], signal: Signal) {
    for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        let _ = kill_process(pid, signal);
    }
}

/// Kills processes until none is left. After 200 rounds the rest dies with the sandbox.
pub(super) fn kill_all(find: &dyn Fn() -> Vec<i32>) {
    for _ in 0..200 {
        // Zombies wait for a parent that may be stopped.
        let found: Vec<i32> = find().into_iter().filter(|pid| !tree::is_zombie(*pid)).collect();
        if found.is_empty() {
            return;
        }
        signal_all(&found, Signal::STOP);
        signal_all(&found, Signal::KILL);
        std::thread::sleep(Duration::from_millis(1));
    }
}
