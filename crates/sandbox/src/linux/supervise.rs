//! The host's side of a run: one poll loop over output, input, the control socket and the clock, until
//! everything is dead.

use std::io::Read as _;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::capture::Capture;
use super::cgroup::Group;
use super::files::Measured;
use super::kernel::shown_call;
use super::launch::{Child, ChildUsage};
use super::tree;
use super::value::{Bounded, ResultLine};
use super::watch::{Watch, processor_micros};
use crate::{Cancel, Captured, Error, Level, Limits, SandboxEvent};

/// The maximum time for reading output after the last process died.
const DRAIN: Duration = Duration::from_millis(500);
/// The interval between checks of limits that the host enforces.
const LOOK: Duration = Duration::from_millis(25);
/// The maximum wait of the loop without a deadline.
const MAX_WAIT: Duration = Duration::from_hours(1);

/// The reason why the host ended the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Cancelled,
    Timeout,
    Cpu,
    Idle,
    Memory,
    Processes,
    Output,
    Disk,
    Inodes,
    /// The program made a system call that ends the run.
    Denied(i32),
}

/// The exit of the main process, as the first process reported it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Status {
    pub(super) wait: i32,
    pub(super) largest: u64,
    /// The usage of the main process and of its reaped children.
    pub(super) usage: ChildUsage,
}

/// The host's ends of a run's descriptors.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
    pub(super) value: Option<OwnedFd>,
    pub(super) stdin: Option<Feed>,
}

/// The input that is still to be written to the program.
pub(super) struct Feed {
    pub(super) pipe: OwnedFd,
    pub(super) source: Box<dyn std::io::Read>,
    pub(super) block: Vec<u8>,
}

impl std::fmt::Debug for Feed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Feed").field("block", &self.block.len()).finish_non_exhaustive()
    }
}

/// A child with everything that contains its descendants. Dropping it kills and reaps all of them.
#[derive(Debug)]
pub(super) struct ProgramProcess {
    pub(super) child: Child,
    pub(super) own_namespaces: bool,
    pub(super) group: Group,
    /// Tears down the sandbox once everything that the program started is dead; none if the run does that.
    pub(super) cleaner: Option<Arc<dyn Cleaner>>,
}

/// Tears down a sandbox whose only process is the finished first process: that process, its namespaces and
/// its cgroup.
pub(super) trait Cleaner: std::fmt::Debug + Send + Sync {
    fn clean(&self, running: ProgramProcess);
}

impl ProgramProcess {
    /// Whether the kernel counts only the first process in the group, so that the teardown may wait.
    ///
    /// The first process is not asked, because it runs under the program's own restrictions.
    fn is_alone(&self) -> bool {
        self.cleaner.is_some()
            && self.own_namespaces
            && self.child.is_adopted()
            && self.group.processes().is_some_and(|count| count <= 1)
    }

    fn kill_all(&self) {
        if self.own_namespaces {
            self.child.kill();
        } else if self.group.kills() {
            self.group.kill();
        } else {
            // The first process goes last, so that orphans remain its children.
            tree::kill_descendants(self.child.pid);
            self.child.kill();
        }
    }
}

impl Drop for ProgramProcess {
    fn drop(&mut self) {
        // A reaped pid may belong to another process.
        if !self.child.is_reaped() {
            self.kill_all();
        }
    }
}

/// The results of the loop.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) status: Option<Status>,
    pub(super) ended: Option<Ended>,
    pub(super) usage: ChildUsage,
    pub(super) stdout: Captured,
    pub(super) stderr: Captured,
    pub(super) result_line: Option<Bounded>,
    pub(super) value: Bounded,
    /// The workspace that the child created.
    pub(super) directory: Option<OwnedFd>,
    /// Whether the first process may still be ending.
    pub(super) is_alone: bool,
}

/// The failure of a set-up step or of the program's start.
#[derive(Debug)]
pub(super) enum Failure {
    /// The index of the step and the error.
    Step(usize, i32),
    /// The program could not be started.
    Program(i32),
    /// The host's own part failed.
    Host(Error),
}

/// The input of the loop.
pub(super) struct Supervision<'a> {
    pub(super) running: &'a mut ProgramProcess,
    pub(super) streams: Streams,
    pub(super) limits: &'a Limits,
    /// The level in force.
    pub(super) level: Level,
    pub(super) cancel: &'a Cancel,
    pub(super) on_event: &'a mut dyn FnMut(SandboxEvent<'_>),
    pub(super) started: Instant,
    /// Called with the workspace that the child created; a waiting child then continues.
    pub(super) on_directory: &'a mut dyn FnMut(BorrowedFd<'_>) -> Result<(), Error>,
    pub(super) child_waits: bool,
    /// Called with the listener for the egress proxy.
    pub(super) on_listener: &'a mut dyn FnMut(OwnedFd) -> Result<(), Error>,
    /// Workspaces without a kernel limit.
    pub(super) measured: &'a [Measured<'a>],
}

enum Message {
    Failed(usize, i32),
    NotStarted(i32),
    Ended(Status),
    Directory(OwnedFd),
    /// The listener on which the kernel reports calls that end the run.
    Listener(OwnedFd),
    /// The listener for the egress proxy.
    EgressListener(OwnedFd),
    End,
    None,
}

/// Runs the loop until everything is dead.
pub(super) fn supervise(supervision: Supervision<'_>) -> Result<Finished, Failure> {
    let Supervision {
        running,
        mut streams,
        limits,
        level,
        cancel,
        on_event,
        started,
        on_directory,
        child_waits,
        on_listener,
        measured,
    } = supervision;
    let mut stdout = Capture::new(limits.stdout);
    let mut stderr = Capture::new(limits.stderr);
    let mut result_line = ResultLine::new(limits.value_bytes);
    let mut value = Bounded::new(limits.value_bytes);
    let mut status: Option<Status> = None;
    let mut ended: Option<Ended> = None;
    let mut failure: Option<Failure> = None;
    let mut directory: Option<OwnedFd> = None;
    let mut ways = Ways { control_open: true, listener: None };
    let (mut dead, mut is_alone) = (false, false);
    let mut drain_until: Option<Instant> = None;
    let mut buffer = vec![0u8; 16 << 10];
    let mut watch = Watch::new(limits, level, running, measured);
    let mut killed_after = Duration::ZERO;
    let deadline = started.checked_add(limits.wall);

    loop {
        let now = Instant::now();
        if ended.is_none() && status.is_none() && failure.is_none() {
            let reason = if cancel.is_cancelled() {
                Some(Ended::Cancelled)
            } else if deadline.is_some_and(|deadline| now >= deadline) {
                Some(Ended::Timeout)
            } else if stdout.total() + stderr.total() > limits.output_total {
                Some(Ended::Output)
            } else {
                watch.look(now, running, stdout.total() + stderr.total())
            };
            if reason.is_some() {
                ended = reason;
                if running.child.is_adopted() {
                    killed_after = Duration::from_micros(processor_micros(running));
                }
                running.kill_all();
                drain_until = Some(now + DRAIN);
            }
        }
        if dead
            && streams.stdout.is_none()
            && streams.stderr.is_none()
            && streams.value.is_none()
            && !ways.control_open
        {
            break;
        }
        if drain_until.is_some_and(|until| now >= until) && dead {
            break;
        }
        let timeout = if dead {
            drain_until.map_or(DRAIN, |until| until.saturating_duration_since(now))
        } else if ended.is_some() || status.is_some() || failure.is_some() {
            // Dying; without a process namespace, new orphans must be killed again.
            LOOK
        } else {
            let mut most = deadline.map_or(MAX_WAIT, |deadline| deadline.saturating_duration_since(now));
            if !cancel.flag.wakes() {
                most = most.min(LOOK);
            }
            if let Some(rest) = watch.rest(now) {
                most = most.min(rest);
            }
            most
        };

        let ready = wait(running, &streams, cancel, &ways, dead, ended.is_none(), timeout);

        if ready.control {
            match receive(&running.child.control) {
                Message::Failed(step, error) => failure = Some(Failure::Step(step, error)),
                Message::NotStarted(error) => failure = Some(Failure::Program(error)),
                Message::Ended(found) => {
                    status.get_or_insert(found);
                    if ended.is_none() && failure.is_none() && running.is_alone() {
                        (dead, is_alone, ways.control_open) = (true, true, false);
                        streams.stdin = None;
                        drain_until = Some(Instant::now() + DRAIN);
                    }
                    if !running.own_namespaces {
                        running.kill_all();
                    }
                }
                Message::Directory(descriptor) => {
                    match on_directory(descriptor.as_fd()) {
                        Ok(()) if child_waits => {
                            let go = rustix::net::send(
                                &running.child.control,
                                b"g",
                                rustix::net::SendFlags::NOSIGNAL,
                            );
                            // A dead child is detected separately.
                            let _ = go;
                        }
                        Ok(()) => {}
                        Err(error) => {
                            failure = Some(Failure::Host(error));
                            running.kill_all();
                        }
                    }
                    directory = Some(descriptor);
                }
                Message::Listener(descriptor) => ways.listener = Some(descriptor),
                Message::EgressListener(listener) => {
                    if let Err(error) = on_listener(listener) {
                        failure = Some(Failure::Host(error));
                        running.kill_all();
                    }
                }
                Message::End => ways.control_open = false,
                Message::None => {}
            }
        }
        if ready.listener {
            match ways.listener.as_ref().and_then(|listener| shown_call(listener.as_fd())) {
                Some(number) if ended.is_none() => {
                    // The call is blocked until then and never performed.
                    ended = Some(Ended::Denied(number));
                    running.kill_all();
                    drain_until = Some(Instant::now() + DRAIN);
                }
                Some(_) => {}
                // No process is left, or the caller is dead.
                None => ways.listener = None,
            }
        }
        if ready.stdin && feed(&mut streams.stdin).is_none() {
            streams.stdin = None;
        }
        if ready.stdout
            && take(&mut streams.stdout, &mut buffer, &mut |bytes| {
                stdout.push(bytes);
                result_line.push(bytes);
                on_event(SandboxEvent::Stdout(bytes));
            })
        {
            streams.stdout = None;
        }
        if ready.stderr
            && take(&mut streams.stderr, &mut buffer, &mut |bytes| {
                stderr.push(bytes);
                on_event(SandboxEvent::Stderr(bytes));
            })
        {
            streams.stderr = None;
        }
        if ready.value && take(&mut streams.value, &mut buffer, &mut |bytes| value.push(bytes)) {
            streams.value = None;
        }
        if !dead && ready.exit {
            dead = true;
            streams.stdin = None;
            drain_until = Some(Instant::now() + DRAIN);
        } else if !dead && !running.own_namespaces && (status.is_some() || ended.is_some()) {
            running.kill_all();
        }
    }

    let mut usage = if is_alone { ChildUsage::default() } else { running.child.reap() };
    if running.child.is_adopted() {
        usage = usage_of_adopted(running, status, killed_after);
    }
    if !running.own_namespaces && running.group.kills() {
        running.group.kill();
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    Ok(Finished {
        status,
        ended,
        usage,
        stdout: stdout.finish(),
        stderr: stderr.finish(),
        result_line: result_line.finish(),
        value,
        directory,
        is_alone,
    })
}

/// The usage of an adopted child, which this process does not reap.
fn usage_of_adopted(running: &ProgramProcess, status: Option<Status>, killed_after: Duration) -> ChildUsage {
    let Some(Status { usage, .. }) = status else {
        return ChildUsage { user_micros: killed_after.as_micros() as u64, system_micros: 0 };
    };
    // Most of the earlier time was the interpreter's own.
    let user = usage.user_micros.checked_sub(running.child.spent());
    match user {
        Some(user_micros) => ChildUsage { user_micros, ..usage },
        None => ChildUsage {
            user_micros: 0,
            system_micros: (usage.user_micros + usage.system_micros).saturating_sub(running.child.spent()),
        },
    }
}

/// The sandbox's channels to the host, besides the program's streams.
#[derive(Debug)]
struct Ways {
    control_open: bool,
    listener: Option<OwnedFd>,
}

#[derive(Debug, Default)]
struct Ready {
    control: bool,
    exit: bool,
    stdout: bool,
    stderr: bool,
    value: bool,
    stdin: bool,
    listener: bool,
}

fn wait<'a>(
    running: &'a ProgramProcess,
    streams: &'a Streams,
    cancel: &'a Cancel,
    ways: &'a Ways,
    dead: bool,
    cancellable: bool,
    timeout: Duration,
) -> Ready {
    let mut waiting: Vec<PollFd<'a>> = Vec::with_capacity(8);
    let mut add = |wanted: Option<BorrowedFd<'a>>, flags: PollFlags| {
        wanted.map(|descriptor| {
            waiting.push(PollFd::from_borrowed_fd(descriptor, flags));
            waiting.len() - 1
        })
    };
    let control = add(ways.control_open.then(|| running.child.control.as_fd()), PollFlags::IN);
    let exit = add((!dead).then(|| running.child.pidfd.as_fd()), PollFlags::IN);
    let stdout = add(streams.stdout.as_ref().map(|stream| stream.as_fd()), PollFlags::IN);
    let stderr = add(streams.stderr.as_ref().map(|stream| stream.as_fd()), PollFlags::IN);
    let value = add(streams.value.as_ref().map(|stream| stream.as_fd()), PollFlags::IN);
    let stdin = add(streams.stdin.as_ref().map(|feed| feed.pipe.as_fd()), PollFlags::OUT);
    let listener = add(ways.listener.as_ref().map(|listener| listener.as_fd()), PollFlags::IN);
    let _ = add(if cancellable && !dead { cancel.flag.descriptor() } else { None }, PollFlags::IN);
    let timeout = Timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    if poll(&mut waiting, Some(&timeout)).is_err() {
        return Ready::default();
    }
    let is_ready = |index: Option<usize>| {
        index.and_then(|index| waiting.get(index)).is_some_and(|entry| !entry.revents().is_empty())
    };
    Ready {
        control: is_ready(control),
        exit: is_ready(exit),
        stdout: is_ready(stdout),
        stderr: is_ready(stderr),
        value: is_ready(value),
        stdin: is_ready(stdin),
        listener: is_ready(listener),
    }
}

/// Reads one message from the control socket.
fn receive(control: &OwnedFd) -> Message {
    let mut bytes = [0u8; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let size = match rustix::net::recvmsg(control, &mut parts, &mut ancillary, flags) {
        Ok(message) => message.bytes,
        Err(Errno::AGAIN | Errno::INTR) => return Message::None,
        Err(_) => return Message::End,
    };
    if size == 0 {
        return Message::End;
    }
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let number = |index: usize| {
        bytes
            .get(index * 8..index * 8 + 8)
            .and_then(|part| part.try_into().ok())
            .map_or(0, u64::from_ne_bytes)
    };
    match (number(0) as u8, descriptor) {
        (b'E', _) => Message::Failed(number(1) as usize, number(2) as i32),
        (b'F', _) => Message::NotStarted(number(1) as i32),
        (b'X', _) => Message::Ended(Status {
            wait: number(1) as i32,
            largest: number(4).saturating_mul(1024),
            usage: ChildUsage { user_micros: number(2), system_micros: number(3) },
        }),
        (b'W', Some(descriptor)) => Message::Directory(descriptor),
        (b'N', Some(descriptor)) => Message::Listener(descriptor),
        (b'L', Some(descriptor)) => Message::EgressListener(descriptor),
        _ => Message::None,
    }
}

/// Reads available output once. Returns whether the stream has ended.
fn take(stream: &mut Option<OwnedFd>, buffer: &mut [u8], each: &mut dyn FnMut(&[u8])) -> bool {
    let Some(descriptor) = stream else { return true };
    match rustix::io::read(&*descriptor, &mut *buffer) {
        Ok(0) => true,
        Ok(size) => {
            each(buffer.get(..size).unwrap_or_default());
            false
        }
        Err(Errno::AGAIN | Errno::INTR) => false,
        Err(_) => true,
    }
}

/// Writes a block of input. Returns none at the end of the input or of the reader.
fn feed(stdin: &mut Option<Feed>) -> Option<()> {
    let feed = stdin.as_mut()?;
    if feed.block.is_empty() {
        feed.block.resize(64 << 10, 0);
        let size = feed.source.read(&mut feed.block).ok().filter(|size| *size > 0)?;
        feed.block.truncate(size);
    }
    match rustix::io::write(&feed.pipe, &feed.block) {
        Ok(written) => {
            feed.block.drain(..written);
            Some(())
        }
        Err(Errno::AGAIN | Errno::INTR) => Some(()),
        Err(_) => None,
    }
}

/// A flag that other threads set and that wakes a poll.
#[derive(Debug)]
pub(crate) struct Flag {
    set: std::sync::atomic::AtomicBool,
    event: Option<OwnedFd>,
}

impl Default for Flag {
    fn default() -> Self {
        use rustix::event::{EventfdFlags, eventfd};
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        Self { set: std::sync::atomic::AtomicBool::new(false), event }
    }
}

impl Flag {
    pub(crate) fn set(&self) {
        self.set.store(true, std::sync::atomic::Ordering::SeqCst);
        if let Some(event) = &self.event {
            // A full counter stays readable.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.set.load(std::sync::atomic::Ordering::SeqCst)
    }

    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.event.as_ref().map(|event| event.as_fd())
    }

    /// Whether setting it wakes a poll; otherwise it is checked periodically.
    fn wakes(&self) -> bool {
        self.event.is_some()
    }
}
