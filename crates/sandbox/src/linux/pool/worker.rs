//! A worker: an idle sandbox, and the handover of a program to it.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::super::attend::Started;
use super::super::cgroup::Group;
use super::super::child_steps::{Pointers, Step};
use super::super::files::{self, Listing};
use super::super::launch::{self, Child, Plan};
use super::super::layer::LiveDirectory;
use super::super::plan;
use super::super::prepare::{
    Ends, Kept, Place, arguments, descriptors, fill, not_blocking, open_live_workspace, pipe, setup, streams,
    variables,
};
use super::super::supervise::{Cleaner, Feed, ProgramProcess, Streams};
use super::super::tree;
use super::super::workspace::{Opened, OpenedDirectory};
use super::base::Base;
use super::host_directory;
use super::zygote::{Zygote, adopt, null, receive, send};
use crate::{Error, Layer, Ready, Report, Sandbox, Stdin, Workspace};

/// The step that sends a worker its program; it fails if the worker has died.
pub(super) const SEND: &str = "send worker its program";

/// The pipe capacity for a prewarmed interpreter's code: the maximum for ordinary users.
const PIPE: usize = 1 << 20;

/// A worker that is still starting.
#[derive(Debug)]
pub(super) struct PendingWorker {
    pub(super) number: u64,
    pub(super) since: Instant,
    /// The zygote of a fork; none for a sandbox that waits for a program.
    zygote: Option<Arc<Zygote>>,
    child: Option<Child>,
    /// None once the child is known.
    control: Option<OwnedFd>,
    order: Option<OwnedFd>,
    group: Group,
    directory: Option<OwnedFd>,
    is_attended: bool,
    /// The processor time used until it was ready, in microseconds.
    ready: Option<u64>,
    report: Report,
    names: Vec<(&'static str, Option<String>)>,
}

/// The progress of a start.
#[derive(Debug)]
pub(super) enum Progress {
    Pending,
    Ready,
    /// With the reason.
    Dead(String),
}

impl PendingWorker {
    /// Requests a fork from a zygote.
    pub(super) fn of_zygote(base: &Base, zygote: &Arc<Zygote>, number: u64) -> Result<Self, Error> {
        let (control, order, group) = zygote.ask(base, number)?;
        Ok(Self {
            number,
            since: Instant::now(),
            child: None,
            control: Some(control),
            order: Some(order),
            group,
            directory: None,
            is_attended: false,
            ready: None,
            report: zygote.report.clone(),
            names: zygote.names.clone(),
            zygote: Some(Arc::clone(zygote)),
        })
    }

    /// Starts a sandbox that waits for its program.
    pub(super) fn waiting(base: &Base, number: u64) -> Result<Self, Error> {
        let fail = setup("start worker");
        let mut group = Group::create(&base.facts.cgroups, &base.limits, false);
        let mut confinement = base.waiting(&mut group)?;
        let report = base.report(&confinement);
        let null = |flags| null(flags).map_err(&fail);
        confinement.steps.push(descriptors(Ends {
            stdio: [null(OFlags::RDONLY)?, null(OFlags::WRONLY)?, null(OFlags::WRONLY)?],
            // Placeholders for the descriptors of the order.
            value: Some(null(OFlags::WRONLY)?),
            code: Some(null(OFlags::RDONLY)?),
        })?);
        let arguments = Pointers::new(vec![c"w".to_owned()]);
        confinement.steps.push(Step::Exec { arguments, environment: Pointers::new(Vec::new()) });
        let names = confinement.steps.iter().map(|step| (step.name(), step.subject())).collect();
        let plan = Plan {
            namespaces: confinement.namespaces,
            cgroup: group.take_born(),
            steps: std::mem::take(&mut confinement.steps),
        };
        let child = launch::start(&plan).map_err(&fail)?;
        Ok(Self {
            number,
            since: Instant::now(),
            zygote: None,
            child: Some(child),
            control: None,
            order: None,
            group,
            directory: None,
            is_attended: false,
            ready: Some(0),
            report,
            names,
        })
    }

    /// Takes the process that the zygote forked.
    pub(super) fn made(&mut self, pidfd: OwnedFd) -> Result<(), String> {
        let control = self.control.take().ok_or("the zygote forked it twice")?;
        let child = adopt(pidfd, control).ok_or("the zygote sent a descriptor that is not a process")?;
        let waits = self.zygote.as_ref().is_some_and(|zygote| zygote.child_waits());
        if waits {
            self.group.adopt(child.pid).map_err(|error| format!("move to its cgroup: {error}"))?;
            rustix::net::send(&child.control, b"g", rustix::net::SendFlags::NOSIGNAL)
                .map_err(|error| format!("resume it: {error}"))?;
        }
        self.child = Some(child);
        Ok(())
    }

    /// The descriptors to poll.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let child = self.child.iter().flat_map(|child| [child.control.as_fd(), child.pidfd.as_fd()]);
        child.chain(self.order.iter().map(|order| order.as_fd()))
    }

    /// Processes received messages.
    pub(super) fn progress(&mut self) -> Progress {
        let mut content = [0u8; 512];
        let Some(child) = &self.child else { return Progress::Pending };
        // First, because it may contain the reason of the end.
        while let Some(order) = &self.order
            && self.ready.is_none()
        {
            let (size, descriptor) = match receive(order, &mut content) {
                Ok(received) => received,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(error) => return Progress::Dead(format!("its socket: {error}")),
            };
            let content = content.get(..size).unwrap_or_default();
            match (content.split_first(), descriptor) {
                (None, _) => return Progress::Dead("it ended before it was ready".into()),
                (Some((b'R', rest)), None) if rest.len() == 8 => {
                    self.ready = rest.try_into().ok().map(u64::from_ne_bytes);
                }
                (Some((b'B', rest)), None) => {
                    let text: String =
                        String::from_utf8_lossy(rest).chars().filter(|letter| !letter.is_control()).collect();
                    return Progress::Dead(format!("its warm-up failed: {text}"));
                }
                _ => return Progress::Dead("it sent an invalid message".into()),
            }
        }
        loop {
            let (size, descriptor) = match receive(&child.control, &mut content) {
                Ok(received) => received,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(error) => return Progress::Dead(format!("its control socket: {error}")),
            };
            let number = |index: usize| {
                content
                    .get(index * 8..index * 8 + 8)
                    .and_then(|part| part.try_into().ok())
                    .map_or(0, u64::from_ne_bytes)
            };
            match (size, number(0) as u8, descriptor) {
                (48, b'W', Some(directory)) if self.directory.is_none() => self.directory = Some(directory),
                (48, b'S', None) if !self.is_attended => self.is_attended = true,
                (48, b'E', None) => {
                    let (step, subject) =
                        self.names.get(number(1) as usize).cloned().unwrap_or(("set-up", None));
                    let subject = subject.map(|subject| format!(" {subject}")).unwrap_or_default();
                    let error = io::Error::from_raw_os_error(number(2) as i32);
                    return Progress::Dead(format!("{step}{subject}: {error}"));
                }
                (0, ..) | (48, b'X', None) => {
                    return Progress::Dead("it ended before it was ready".into());
                }
                _ => return Progress::Dead("it sent an invalid message".into()),
            }
        }
        if self.directory.is_some() && self.is_attended && self.ready.is_some() {
            Progress::Ready
        } else {
            Progress::Pending
        }
    }

    /// Converts the started sandbox into a worker.
    pub(super) fn finish(self, base: &Base, is_warm: bool) -> Result<Worker, Error> {
        let fail = setup("finish worker");
        let lost = || fail(io::Error::other("it is not ready"));
        let child = self.child.ok_or_else(lost)?;
        let running = ProgramProcess { child, own_namespaces: true, group: self.group, cleaner: None };
        let handoff = match (self.zygote, self.order) {
            (Some(zygote), Some(order)) => Handoff::Zygote { zygote, order },
            _ => Handoff::Waiting,
        };
        let worker = Worker {
            running,
            handoff,
            directory: self.directory.ok_or_else(lost)?,
            spent: self.ready.unwrap_or(0),
            report: self.report,
            names: self.names,
            is_warm,
        };
        if base.begins() { worker.start_interpreter(base) } else { Ok(worker) }
    }
}

/// The event that a worker waits for, and where.
#[derive(Debug)]
enum Handoff {
    /// A fork of a zygote waits for code on this socket.
    Zygote { zygote: Arc<Zygote>, order: OwnedFd },
    /// A sandbox waits for its program on its control socket.
    Waiting,
    /// A running interpreter waits for code in these pipes.
    Interpreter { output: [Option<OwnedFd>; 3], input: OwnedFd, code: OwnedFd },
}

/// An idle sandbox. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Worker {
    running: ProgramProcess,
    handoff: Handoff,
    directory: OwnedFd,
    spent: u64,
    report: Report,
    names: Vec<(&'static str, Option<String>)>,
    is_warm: bool,
}

impl Worker {
    /// A descriptor that becomes readable when the worker dies.
    pub(super) fn pidfd(&self) -> BorrowedFd<'_> {
        self.running.child.pidfd.as_fd()
    }

    /// Is a fork of this zygote.
    pub(super) fn is_of(&self, other: &Arc<Zygote>) -> bool {
        matches!(&self.handoff, Handoff::Zygote { zygote, .. } if Arc::ptr_eq(zygote, other))
    }

    /// Is dead or dying.
    ///
    /// The kernel kills all forks of a zygote with the zygote's first process, and closes that process's
    /// descriptors before.
    pub(super) fn is_lost(&self) -> bool {
        let hung_up = |descriptor: BorrowedFd<'_>| {
            let mut waiting = [PollFd::from_borrowed_fd(descriptor, PollFlags::empty())];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut waiting, Some(&now)).is_ok_and(|count| count > 0)
        };
        let of_zygote = |zygote: &Zygote| hung_up(zygote.control());
        matches!(&self.handoff, Handoff::Zygote { zygote, .. } if of_zygote(zygote))
            || hung_up(self.running.child.control.as_fd())
    }

    /// Starts the pool's interpreter in a waiting sandbox; its code comes later.
    fn start_interpreter(mut self, base: &Base) -> Result<Self, Error> {
        let fail = setup("prewarm interpreter");
        let sandbox = base.sandbox.clone().stdin(Stdin::Empty);
        let (host, _, mut ends) = streams(&sandbox, base.ready.payload.as_ref(), false, None)?;
        let (code_child, code) = pipe()?;
        let (input_child, input) = pipe()?;
        // A smaller pipe means that less code fits.
        let _ = rustix::pipe::fcntl_setpipe_size(&code, PIPE);
        not_blocking(&code)?;
        not_blocking(&input)?;
        ends.code = Some(launch::high(code_child).map_err(&fail)?);
        ends.stdio[0] = launch::high(input_child).map_err(&fail)?;
        self.order(base, &base.sandbox, &base.ready, ends)?;
        let Streams { stdout, stderr, value, .. } = host;
        self.handoff = Handoff::Interpreter { output: [stdout, stderr, value], input, code };
        Ok(self)
    }

    /// Sends a waiting sandbox its program.
    fn order(&self, base: &Base, sandbox: &Sandbox, ready: &Ready, ends: Ends) -> Result<(), Error> {
        let fail = setup(SEND);
        let workspace = Path::new(plan::WORKSPACE);
        let mut all = vec![super::super::root::path(&ready.path)];
        all.extend(arguments(ready, &base.limits));
        let variables = variables(sandbox, None, ready, workspace, true, None);
        let directory = plan::start(workspace, sandbox.directory.as_deref());
        let content = encode_program(&all, &variables, &super::super::root::path(directory));
        let file = launch::sealed(c"order", &content, false).map_err(&fail)?;
        let Ends { stdio: [stdin, stdout, stderr], value, code } = ends;
        let mut handed = vec![stdin.as_fd(), file.as_fd(), stdout.as_fd(), stderr.as_fd()];
        handed.extend(value.iter().chain(&code).map(|descriptor| descriptor.as_fd()));
        send(&self.running.child.control, b"o", &handed).map_err(|error| fail(error.into()))
    }

    /// Uploads the files, hands over the program and returns the started run.
    ///
    /// Any failure here happens before the program's first instruction.
    pub(super) fn begin(
        mut self,
        base: &Base,
        sandbox: &Sandbox,
        ready: &Ready,
        cleaner: Arc<dyn Cleaner>,
    ) -> Result<Started, Error> {
        let limits = sandbox.limits_at(base.level);
        let owner = base.owner();
        let mut before = Listing::default();
        let host = match &sandbox.workspace {
            Workspace::Host(path) => match OpenedDirectory::open(path, &base.facts, sandbox, owner)? {
                Opened::Layered(directory) => Some(self.attach(base, directory)?),
                Opened::Unlayered(reason) => return Err(Error::Workspace { path: path.clone(), reason }),
            },
            Workspace::LiveHost(path) => {
                Some(self.attach(base, open_live_workspace(sandbox, path, &base.facts)?)?)
            }
            _ => None,
        };
        if let Some(layer) = host.as_ref().and_then(OpenedDirectory::layer) {
            layer.attend_to_others(sandbox.layers.as_deref(), &mut self.report.notes);
        }
        // Mount points in a host directory are removed with the sandbox, not before.
        let cleaner = host.is_none().then_some(cleaner);
        if let Handoff::Zygote { zygote, order } = &self.handoff
            && let Some(landlock) = &zygote.landlock
        {
            host_directory::lock(order, landlock)?;
        }
        if let Some(directory) = &host {
            let host_owner = base.facts.is_root().then(|| directory.owner());
            before = fill(directory, sandbox, &limits, host_owner, owner, true)?;
        } else {
            files::upload(self.directory.as_fd(), &sandbox.files, &limits, owner)?;
            if self.is_warm || !sandbox.files.is_empty() {
                before = files::list(self.directory.as_fd());
            }
        }
        if let Some(directory) = &sandbox.directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let root = host.as_ref().map_or(self.directory.as_fd(), OpenedDirectory::descriptor);
            files::open_beneath(root, Path::new(directory), flags, Mode::empty()).map_err(|error| {
                setup("enter workspace")(io::Error::new(error.kind(), format!("{directory}: {error}")))
            })?;
        }
        if limits.cpu.is_some() || limits.idle.is_some() {
            self.spent = self
                .running
                .group
                .processor_micros()
                .unwrap_or_else(|| tree::processor_micros(self.running.child.pid));
        }
        let streams = self.tell(base, sandbox, ready)?;
        let Self { mut running, directory, spent, mut report, names, handoff, .. } = self;
        running.cleaner = cleaner;
        running.child.begin(spent);
        running.child.keep(match handoff {
            Handoff::Zygote { zygote, .. } => Some(Box::new(zygote)),
            _ => None,
        });
        report.requested = sandbox.level;
        let workspace = host.is_none().then_some(directory);
        let place = host.map_or(Place::Private, Place::Host);
        let limits = place.limits(&limits);
        let kept = Kept {
            place,
            before,
            child_waits: false,
            owner,
            report,
            is_live: false,
            program: ready.path.clone(),
            language: ready.language,
            limits,
            egress: None,
            live_directory: LiveDirectory::default(),
            live_copy: None,
            home: None,
            workspace,
        };
        Ok(Started { running, streams, names, kept })
    }

    /// Mounts a host directory as the workspace, protected as in a cold run.
    fn attach(&mut self, base: &Base, mut directory: OpenedDirectory) -> Result<OpenedDirectory, Error> {
        let process = self.running.child.pidfd.as_fd();
        let owner = match &self.handoff {
            Handoff::Zygote { zygote, .. } => zygote.pidfd(),
            _ => process,
        };
        host_directory::attach(base, &mut directory, process, owner)?;
        let Report { layers, missing, .. } = &mut self.report;
        layers.retain(|layer| *layer != Layer::WorkspaceQuota);
        let mut first = Vec::new();
        plan::describe(&directory, layers, &mut first);
        layers.sort_unstable();
        missing.splice(0..0, first);
        Ok(directory)
    }

    fn tell(&mut self, base: &Base, sandbox: &Sandbox, ready: &Ready) -> Result<Streams, Error> {
        let fail = setup(SEND);
        match &mut self.handoff {
            Handoff::Zygote { order, .. } => {
                let (host, _, ends) = streams(sandbox, ready.payload.as_ref(), false, None)?;
                let Ends { stdio, value, code } = ends;
                let mut environment = None;
                if sandbox.environment != base.sandbox.environment {
                    let list = variables(sandbox, None, ready, Path::new(plan::WORKSPACE), true, None);
                    let content: Vec<u8> =
                        list.iter().flat_map(|entry| entry.as_bytes_with_nul().to_vec()).collect();
                    environment = Some(launch::sealed(c"environment", &content, false).map_err(&fail)?);
                }
                let mut message = vec![b'G'];
                let is_fresh = matches!(sandbox.workspace, Workspace::Fresh);
                // It starts in the fresh workspace.
                if sandbox.directory.is_some() || !is_fresh {
                    let directory = plan::start(Path::new(plan::WORKSPACE), sandbox.directory.as_deref());
                    message.extend(directory.as_os_str().as_bytes());
                }
                let handed: Vec<BorrowedFd<'_>> = stdio
                    .iter()
                    .chain(&value)
                    .chain(&code)
                    .chain(&environment)
                    .map(|descriptor| descriptor.as_fd())
                    .collect();
                send(order, &message, &handed).map_err(|error| fail(error.into()))?;
                Ok(host)
            }
            Handoff::Waiting => {
                let (host, _, ends) = streams(sandbox, ready.payload.as_ref(), false, None)?;
                self.order(base, sandbox, ready, ends)?;
                Ok(host)
            }
            Handoff::Interpreter { .. } => {
                let Handoff::Interpreter { output: [stdout, stderr, value], input, code } =
                    std::mem::replace(&mut self.handoff, Handoff::Waiting)
                else {
                    return Err(fail(io::Error::other("it has no interpreter")));
                };
                if let Some(payload) = &ready.payload {
                    let text = &payload.content;
                    let written = rustix::io::write(&code, text).map_err(|error| fail(error.into()))?;
                    if written != text.len() {
                        return Err(fail(io::Error::other("the code is larger than its pipe")));
                    }
                }
                let source: Option<Box<dyn io::Read>> = match &sandbox.stdin {
                    Stdin::Empty => None,
                    Stdin::Bytes(bytes) => Some(Box::new(io::Cursor::new(bytes.clone()))),
                    Stdin::File(path) => Some(Box::new(files::open_regular(path).map_err(|source| {
                        Error::File { action: "read input", path: path.clone(), source }
                    })?)),
                };
                let stdin = source.map(|source| Feed { pipe: input, source, block: Vec::new() });
                Ok(Streams { stdout, stderr, value, stdin })
            }
        }
    }
}

/// Encodes a program for the first process.
fn encode_program(arguments: &[CString], variables: &[CString], directory: &CString) -> Vec<u8> {
    let slots = 4 + arguments.len() + 1 + variables.len() + 1;
    let mut texts = Vec::new();
    let mut places = Vec::with_capacity(slots);
    let mut add = |text: &CString| {
        let place = slots * 8 + texts.len();
        texts.extend_from_slice(text.as_bytes_with_nul());
        place
    };
    let directory = add(directory);
    places.extend(arguments.iter().map(&mut add));
    places.push(0);
    places.extend(variables.iter().map(&mut add));
    places.push(0);
    let head = [slots * 8 + texts.len(), arguments.len(), variables.len(), directory];
    let numbers = head.into_iter().chain(places);
    let mut content: Vec<u8> = numbers.flat_map(|number| (number as u64).to_ne_bytes()).collect();
    content.extend(texts);
    content
}

/// Whether code fits into the pipe of a prewarmed interpreter.
pub(super) fn code_fits(source: &str) -> bool {
    source.len() < PIPE - 4096
}

#[cfg(test)]
mod tests {
    use super::super::super::launch::c_string;
    use super::*;

    #[test]
    fn the_first_process_can_decode_an_encoded_program() {
        let text = |text: &str| c_string(text);
        let content = encode_program(&[text("/bin/x"), text("y")], &[text("A=1")], &text("/w"));
        let number =
            |index: usize| u64::from_ne_bytes(content[index * 8..index * 8 + 8].try_into().unwrap()) as usize;
        let at = |index: usize| {
            let rest = &content[number(index)..];
            String::from_utf8(rest[..rest.iter().position(|byte| *byte == 0).unwrap()].to_vec()).unwrap()
        };
        assert_eq!((number(0), number(1), number(2)), (content.len(), 2, 1));
        assert_eq!(
            (at(3), at(4), at(5), number(6), at(7), number(8)),
            ("/w".into(), "/bin/x".into(), "y".into(), 0, "A=1".into(), 0)
        );
    }
}
