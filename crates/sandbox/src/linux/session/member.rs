//! A member of a family: one interpreter that runs cells, and the host's ends of all that belongs to it.

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

use super::super::files::{self, Folder, Listing};
use super::super::prepare::setup;
use super::super::{kernel, tree};
use super::copy;
use super::family::{Family, Packet, Seat, buffer, receive, socket_pair, wait_for};
use super::frame::{self, Nonce};
use super::roots::{self, Root};
use crate::running::Pipes;
use crate::{Error, Sandbox, Workspace};

/// A fork that is not there after this time never will be: code that runs at a fork may hang.
const FORKED_WITHIN: Duration = Duration::from_secs(5);
/// Each fork adds a Landlock domain, of which the kernel allows 16.
const DEEPEST: usize = 12;

/// By which means a member was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopped {
    No,
    /// The control group of the family.
    Group,
    /// A signal to each of its processes.
    Signal,
}

/// An interpreter with its descriptors. Dropped, it dies with everything that it started, its forks left alone.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) family: Arc<Family>,
    pub(super) socket: OwnedFd,
    pub(super) pid: i32,
    pub(super) pidfd: Arc<OwnedFd>,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    /// The workspace; none where it is a folder of the host that is only read.
    folder: Option<Arc<Folder>>,
    /// Its own root, if it is a fork.
    pub(super) root: Option<Root>,
    /// The workspace as it was after the last cell.
    pub(super) before: Listing,
    depth: usize,
    /// Whether the family has no origin, and so begins anew with it.
    is_lone: bool,
    stopped: Stopped,
    pub(super) fork_time: Duration,
    /// What the kernel had counted after the last cell: processes killed for want of memory, and processes refused.
    pub(super) counted: (u64, u64),
    _seat: Seat,
}

/// What a fork gives.
struct Born {
    socket: OwnedFd,
    pid: i32,
    pidfd: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    time: Duration,
}

/// A name that nobody can guess.
pub(super) fn nonce() -> Result<Nonce, Error> {
    let mut nonce = Nonce::default();
    rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| setup("name a request")(error.into()))?;
    Ok(nonce)
}

fn output() -> Result<(OwnedFd, OwnedFd), Error> {
    let fail = |error: rustix::io::Errno| setup("make pipes")(error.into());
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(fail)?;
    rustix::io::ioctl_fionbio(&read, true).map_err(fail)?;
    Ok((read, write))
}

fn failed(reason: impl Into<String>) -> Error {
    setup("fork interpreter")(io::Error::other(reason.into()))
}

/// Lets an interpreter fork.
fn bear(family: &Family, asked: &OwnedFd, root: Option<&Root>) -> Result<Born, Error> {
    let (socket, inside) = socket_pair()?;
    let (stdout, stdout_inside) = output()?;
    let (stderr, stderr_inside) = output()?;
    let nonce = nonce()?;
    let mut descriptors = vec![inside.as_fd(), stdout_inside.as_fd(), stderr_inside.as_fd()];
    descriptors.extend(root.map(|root| root.directory.as_fd()));
    let begin = Instant::now();
    send(asked, &frame::encode(frame::ask::FORK, &nonce, &[]), &descriptors)?;
    drop((inside, stdout_inside, stderr_inside));
    let until = begin + FORKED_WITHIN;
    let mut buffer = buffer();
    let pid = loop {
        if Instant::now() >= until || family.remains().is_some() {
            return Err(failed("the interpreter did not fork in time"));
        }
        if !wait_for(socket.as_fd(), PollFlags::IN, Duration::from_millis(50)) {
            refusal(asked, &nonce, &mut buffer)?;
            continue;
        }
        match receive(&socket, &mut buffer) {
            Packet::From(size, sender) => {
                let frame = buffer.get(..size).and_then(frame::decode);
                match frame.filter(|frame| frame.letter == frame::tell::HELLO) {
                    Some(frame) if frame.payload.is_empty() => break sender,
                    Some(frame) => {
                        let reason = String::from_utf8_lossy(frame.payload);
                        return Err(failed(crate::level::shorten(&reason)));
                    }
                    None => return Err(failed("the fork did not greet")),
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
    // The answer to the request, which would be nobody's later.
    if wait_for(asked.as_fd(), PollFlags::IN, FORKED_WITHIN) {
        refusal(asked, &nonce, &mut buffer)?;
    }
    let process = Pid::from_raw(pid).ok_or_else(|| failed("the fork has no number"))?;
    let pidfd = pidfd_open(process, PidfdFlags::empty()).map_err(|error| failed(error.to_string()))?;
    // The kernel named the sender; that it is still the same, and of this family, is seen here.
    if !tree::descendants(family.pid).contains(&pid) {
        return Err(failed("the fork died at once"));
    }
    Ok(Born { socket, pid, pidfd, stdout, stderr, time })
}

/// Reads the answers of the interpreter that was asked to fork, and gives its refusal as an error.
fn refusal(asked: &OwnedFd, nonce: &Nonce, buffer: &mut [u8]) -> Result<(), Error> {
    for _ in 0..frame::MAXIMUM_STRAY {
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
    /// The first member of a family.
    pub(super) fn first(
        family: &Arc<Family>,
        folder: Option<Arc<Folder>>,
        before: Listing,
    ) -> Result<Self, Error> {
        let seat = Seat::take(family)?;
        let born = {
            let origin = family.origin.lock().unwrap_or_else(PoisonError::into_inner);
            bear(family, &origin, None)?
        };
        Ok(Self::new(born, seat, family, folder, None, before, 1))
    }

    /// The one member of a family that has no origin: its main program.
    pub(super) fn lone(
        family: &Arc<Family>,
        socket: OwnedFd,
        pipes: Pipes,
        folder: Option<Arc<Folder>>,
        before: Listing,
    ) -> Result<Self, Error> {
        let seat = Seat::take(family)?;
        let fail = setup("start interpreter");
        let pid = family.origin_pid;
        let process = Pid::from_raw(pid).ok_or_else(|| failed("the interpreter has no number"))?;
        let pidfd = pidfd_open(process, PidfdFlags::empty()).map_err(|error| fail(error.into()))?;
        if !tree::descendants(family.pid).contains(&pid) {
            return Err(failed("the interpreter died at once"));
        }
        let (stdout, stderr) = (OwnedFd::from(pipes.stdout), OwnedFd::from(pipes.stderr));
        for stream in [&stdout, &stderr] {
            rustix::io::ioctl_fionbio(stream, true).map_err(|error| fail(error.into()))?;
        }
        let born = Born { socket, pid, pidfd, stdout, stderr, time: Duration::ZERO };
        let mut member = Self::new(born, seat, family, folder, None, before, 1);
        member.is_lone = true;
        Ok(member)
    }

    fn new(
        born: Born,
        seat: Seat,
        family: &Arc<Family>,
        folder: Option<Arc<Folder>>,
        root: Option<Root>,
        before: Listing,
        depth: usize,
    ) -> Self {
        let Born { socket, pid, pidfd, stdout, stderr, time } = born;
        family.pids.lock().unwrap_or_else(PoisonError::into_inner).insert(pid);
        Self {
            family: Arc::clone(family),
            socket,
            pid,
            pidfd: Arc::new(pidfd),
            stdout,
            stderr,
            folder,
            root,
            before,
            depth,
            is_lone: false,
            stopped: Stopped::No,
            fork_time: time,
            counted: (family.group.memory_kills(), family.group.refused_processes()),
            _seat: seat,
        }
    }

    /// Whether another fork would be too deep.
    pub(super) fn is_deepest(&self) -> bool {
        self.depth >= DEEPEST
    }

    /// Forks this interpreter into a root that was made for it.
    pub(super) fn fork(&mut self, root: Root) -> Result<Self, Error> {
        let seat = Seat::take(&self.family)?;
        let born = bear(&self.family, &self.socket, Some(&root))?;
        let descriptor =
            super::super::launch::duplicate(root.workspace.as_fd()).map_err(setup("keep workspace"))?;
        let folder = Arc::new(Folder::new(descriptor));
        let before = files::list(folder.descriptor.as_fd());
        let depth = self.depth + 1;
        Ok(Self::new(born, seat, &self.family, Some(folder), Some(root), before, depth))
    }

    /// Kills the interpreter with what it started, and puts a fresh one in its place.
    pub(super) fn reset(&mut self, fresh: bool) -> Result<(), Error> {
        self.thaw();
        if let Some(reason) = self.family.remains().map(|remains| remains.reason.clone()) {
            return Err(Error::SessionEnded { reason });
        }
        if self.is_lone {
            return self.begin_anew(fresh);
        }
        self.kill();
        if self.family.members.load(Ordering::SeqCst) == 1 {
            // What lost its parent belongs to nobody else.
            let origin = BTreeSet::from([self.family.origin_pid]);
            kill_all(&|| tree::descendants_without(self.family.pid, &origin));
        }
        if fresh {
            if let Some(folder) = &self.folder {
                copy::empty(folder.descriptor.as_fd());
            }
            if self.family.facts.namespaces.is_ok()
                && let Ok(scratch) = roots::scratch(self)
            {
                copy::empty(scratch.as_fd());
            }
        }
        let born = {
            let origin = self.family.origin.lock().unwrap_or_else(PoisonError::into_inner);
            bear(&self.family, &origin, self.root.as_ref())?
        };
        let mut pids = self.family.pids.lock().unwrap_or_else(PoisonError::into_inner);
        pids.remove(&self.pid);
        pids.insert(born.pid);
        drop(pids);
        let Born { socket, pid, pidfd, stdout, stderr, time } = born;
        self.fork_time = time;
        (self.socket, self.pid, self.pidfd) = (socket, pid, Arc::new(pidfd));
        (self.stdout, self.stderr) = (stdout, stderr);
        self.before = self.list();
        Ok(())
    }

    /// Puts a new family in the place of this one, with the files of its workspace.
    fn begin_anew(&mut self, fresh: bool) -> Result<(), Error> {
        let (sandbox, language, limits) = &self.family.start;
        // The first files are among those that are there, or are gone with them.
        let sandbox = Sandbox { files: Vec::new(), ..sandbox.clone() };
        self.family.end();
        let next = super::family::start(&sandbox, *language, limits)?;
        if let (Some(from), Some(to)) = (&self.folder, &next.folder) {
            let is_same = matches!(sandbox.workspace, Workspace::Host(_) | Workspace::LiveHost(_));
            if is_same && fresh {
                copy::empty(to.descriptor.as_fd());
            } else if !is_same && !fresh {
                copy::tree(from.descriptor.as_fd(), to.descriptor.as_fd(), next.family.owner)
                    .map_err(|reason| failed(format!("the files could not be copied: {reason}")))?;
            }
        }
        *self = next;
        self.before = self.list();
        Ok(())
    }

    /// The workspace as a folder that can be written.
    pub(super) fn folder(&self, action: &'static str) -> Result<&Arc<Folder>, Error> {
        self.folder.as_ref().ok_or_else(|| Error::SessionRejected {
            action,
            reason: "the workspace is a folder of the host that is only read".into(),
            hint: "use the folder itself, or a fresh workspace",
        })
    }

    pub(super) fn workspace(&self) -> Option<&Arc<Folder>> {
        self.folder.as_ref()
    }

    /// Shows the interpreter what others changed in a host directory since the last cell.
    pub(super) fn refresh(&mut self) {
        let mut layer = self.family.layer.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(layer), Some(folder)) = (layer.as_mut(), &self.folder) else { return };
        layer.refresh(folder.descriptor.as_fd(), self.family.owner);
        self.before = files::list(folder.descriptor.as_fd());
    }

    /// The workspace as it is now.
    pub(super) fn list(&self) -> Listing {
        let Some(folder) = &self.folder else { return Listing::default() };
        files::list(folder.descriptor.as_fd())
    }

    /// Whether the interpreter is dead.
    pub(super) fn is_dead(&self) -> bool {
        wait_for(self.pidfd.as_fd(), PollFlags::IN, Duration::ZERO)
    }

    /// How the interpreter ended, in the form of `wait`. None while nobody knows: another process may have asked first.
    pub(super) fn status(&self) -> Option<i32> {
        let of_main = || self.family.remains().and_then(|remains| remains.status).filter(|_| self.is_lone);
        self.status_of_zombie().or_else(|| kernel::exit_status(self.pidfd.as_fd())).or_else(of_main)
    }

    fn status_of_zombie(&self) -> Option<i32> {
        // The last number; the name in parentheses may hold anything.
        let stat =
            std::fs::read_to_string(Path::new("/proc").join(self.pid.to_string()).join("stat")).ok()?;
        let (_, numbers) = stat.rsplit_once(") ")?;
        let mut numbers = numbers.split_whitespace();
        if numbers.next() != Some("Z") {
            return None;
        }
        numbers.nth(48)?.parse().ok()
    }

    /// Why it cannot run another cell, if it cannot.
    pub(super) fn ended(&self) -> Option<String> {
        if !self.is_dead() {
            return None;
        }
        let remains = self.family.remains().filter(|remains| !remains.reason.is_empty());
        Some(remains.map_or_else(|| "its interpreter ended".to_owned(), |remains| remains.reason.clone()))
    }

    /// The processes of this member, the interpreter first, without its forks.
    fn processes(&self) -> Vec<i32> {
        let mut others = self.family.pids.lock().unwrap_or_else(PoisonError::into_inner).clone();
        others.remove(&self.pid);
        tree::descendants_without(self.pid, &others)
    }

    /// Sends the interpreter a signal.
    pub(super) fn signal(&self, signal: Signal) {
        tree::signal(self.pidfd.as_fd(), self.pid, signal);
    }

    /// Kills it with everything that it started.
    pub(super) fn kill(&self) {
        if self.family.remains().is_some() {
            return;
        }
        if !self.is_dead() {
            // Stopped first, so that it makes no further process meanwhile.
            self.signal(Signal::STOP);
            kill_all(&|| self.processes());
            self.signal(Signal::KILL);
            wait_for(self.pidfd.as_fd(), PollFlags::IN, Duration::from_millis(500));
        }
        kill_all(&|| self.orphans());
    }

    /// Processes that this member started and that lost their parent: they live in its workspace, and descend from no
    /// other member.
    fn orphans(&self) -> Vec<i32> {
        let Some(folder) = &self.folder else { return Vec::new() };
        let mut others = self.family.pids.lock().unwrap_or_else(PoisonError::into_inner).clone();
        others.extend([self.pid, self.family.origin_pid]);
        roots::users(&self.family, folder.descriptor.as_fd(), &others)
    }

    pub(super) fn freeze(&mut self) {
        if self.stopped != Stopped::No || self.is_dead() {
            return;
        }
        let is_alone = self.family.members.load(Ordering::SeqCst) == 1;
        if is_alone && self.family.group.freeze(true) {
            self.stopped = Stopped::Group;
            return;
        }
        self.signal(Signal::STOP);
        signal_all(&self.processes(), Signal::STOP);
        self.stopped = Stopped::Signal;
    }

    pub(super) fn thaw(&mut self) {
        match std::mem::replace(&mut self.stopped, Stopped::No) {
            Stopped::No => {}
            Stopped::Group => {
                self.family.group.freeze(false);
            }
            Stopped::Signal => {
                signal_all(&self.processes(), Signal::CONT);
                self.signal(Signal::CONT);
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.thaw();
        if self.family.members.load(Ordering::SeqCst) <= 1 {
            self.family.end();
        } else {
            self.kill();
        }
        self.family.pids.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.pid);
    }
}

fn signal_all(pids: &[i32], signal: Signal) {
    for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        let _ = kill_process(pid, signal);
    }
}

/// Kills processes until there is none, new ones too; after 200 rounds what is left dies with the family.
pub(super) fn kill_all(find: &dyn Fn() -> Vec<i32>) {
    for _ in 0..200 {
        // Who is dead already waits for a parent that may be stopped.
        let found: Vec<i32> = find().into_iter().filter(|pid| !tree::is_zombie(*pid)).collect();
        if found.is_empty() {
            return;
        }
        signal_all(&found, Signal::STOP);
        signal_all(&found, Signal::KILL);
        std::thread::sleep(Duration::from_millis(1));
    }
}
