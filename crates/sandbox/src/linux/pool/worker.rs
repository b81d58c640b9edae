//! A sandbox that is ready, and what it is told.

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
use super::super::files::{self, Listing};
use super::super::launch::{self, Child, Plan};
use super::super::layer::LiveDirectory;
use super::super::plan;
use super::super::prepare::{
    Ends, Kept, Place, arguments, descriptors, fill, not_blocking, pipe, setup, streams, variables,
};
use super::super::steps::{Pointers, Step};
use super::super::supervise::{Cleaner, Feed, Running, Streams};
use super::super::tree;
use super::super::workspace::HostFolder;
use super::base::Base;
use super::host_directory;
use super::zygote::{Zygote, adopt, null, receive, send};
use crate::{Error, Layer, Ready, Report, Sandbox, Stdin, Workspace};

/// Room for the code of an interpreter that was started ahead: the most that an ordinary user gets.
const PIPE: usize = 1 << 20;

/// A sandbox on its way to being ready.
#[derive(Debug)]
pub(super) struct Making {
    pub(super) number: u64,
    pub(super) since: Instant,
    /// The zygote's child; otherwise the sandbox waits for a program.
    zygote: Option<Arc<Zygote>>,
    child: Option<Child>,
    /// Until the child is known.
    control: Option<OwnedFd>,
    order: Option<OwnedFd>,
    group: Group,
    folder: Option<OwnedFd>,
    is_attended: bool,
    /// The processor time that it has used, in microseconds, once it is ready.
    ready: Option<u64>,
    report: Report,
    names: Vec<(&'static str, Option<String>)>,
}

/// How far it has come.
#[derive(Debug)]
pub(super) enum Progress {
    Pending,
    Ready,
    /// And why.
    Dead(String),
}

impl Making {
    /// Asks a zygote for a child.
    pub(super) fn of_zygote(base: &Base, zygote: &Arc<Zygote>, number: u64) -> Result<Self, Error> {
        let (control, order, group) = zygote.ask(base, number)?;
        Ok(Self {
            number,
            since: Instant::now(),
            child: None,
            control: Some(control),
            order: Some(order),
            group,
            folder: None,
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
            // They keep the places free for those of the order.
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
            folder: None,
            is_attended: false,
            ready: Some(0),
            report,
            names,
        })
    }

    /// The zygote has made the process.
    pub(super) fn made(&mut self, pidfd: OwnedFd) -> Result<(), String> {
        let control = self.control.take().ok_or("the zygote made it twice")?;
        let child = adopt(pidfd, control).ok_or("the zygote handed over something that is no process")?;
        let waits = self.zygote.as_ref().is_some_and(|zygote| zygote.child_waits());
        if waits {
            self.group.adopt(child.pid).map_err(|error| format!("move to its control group: {error}"))?;
            rustix::net::send(&child.control, b"g", rustix::net::SendFlags::NOSIGNAL)
                .map_err(|error| format!("let it go on: {error}"))?;
        }
        self.child = Some(child);
        Ok(())
    }

    /// What to wait for.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let child = self.child.iter().flat_map(|child| [child.control.as_fd(), child.pidfd.as_fd()]);
        child.chain(self.order.iter().map(|order| order.as_fd()))
    }

    /// Takes in what has come.
    pub(super) fn progress(&mut self) -> Progress {
        let mut content = [0u8; 512];
        let Some(child) = &self.child else { return Progress::Pending };
        // First, because it may say why the child ends.
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
                _ => return Progress::Dead("it sent what no child sends".into()),
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
                (48, b'W', Some(folder)) if self.folder.is_none() => self.folder = Some(folder),
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
                _ => return Progress::Dead("it sent what no child sends".into()),
            }
        }
        if self.folder.is_some() && self.is_attended && self.ready.is_some() {
            Progress::Ready
        } else {
            Progress::Pending
        }
    }

    /// The worker that it has become.
    pub(super) fn finish(self, base: &Base, is_warm: bool) -> Result<Worker, Error> {
        let fail = setup("finish worker");
        let lost = || fail(io::Error::other("it is not ready"));
        let child = self.child.ok_or_else(lost)?;
        let running = Running { child, own_namespaces: true, group: self.group, cleaner: None };
        let told = match (self.zygote, self.order) {
            (Some(zygote), Some(order)) => Told::Zygote { zygote, order },
            _ => Told::Waiting,
        };
        let worker = Worker {
            running,
            told,
            folder: self.folder.ok_or_else(lost)?,
            spent: self.ready.unwrap_or(0),
            report: self.report,
            names: self.names,
            is_warm,
        };
        if base.begins() { worker.start_interpreter(base) } else { Ok(worker) }
    }
}

/// What a worker waits for.
#[derive(Debug)]
enum Told {
    /// A child of a zygote: for its code, on this socket.
    Zygote { zygote: Arc<Zygote>, order: OwnedFd },
    /// A sandbox: for its program, on its control socket.
    Waiting,
    /// An interpreter that runs: for the end of its code.
    Begun { output: [Option<OwnedFd>; 3], input: OwnedFd, code: OwnedFd },
}

/// A sandbox that is ready. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Worker {
    running: Running,
    told: Told,
    folder: OwnedFd,
    spent: u64,
    report: Report,
    names: Vec<(&'static str, Option<String>)>,
    is_warm: bool,
}

impl Worker {
    /// Becomes readable when it dies.
    pub(super) fn pidfd(&self) -> BorrowedFd<'_> {
        self.running.child.pidfd.as_fd()
    }

    /// Whether it is a child of this zygote.
    pub(super) fn is_of(&self, other: &Arc<Zygote>) -> bool {
        matches!(&self.told, Told::Zygote { zygote, .. } if Arc::ptr_eq(zygote, other))
    }

    /// Whether it dies, or is about to: the kernel kills all children of a zygote with the zygote's first process, whose
    /// descriptors it closes before.
    pub(super) fn is_lost(&self) -> bool {
        let hung_up = |descriptor: BorrowedFd<'_>| {
            let mut waiting = [PollFd::from_borrowed_fd(descriptor, PollFlags::empty())];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut waiting, Some(&now)).is_ok_and(|count| count > 0)
        };
        let of_zygote = |zygote: &Zygote| hung_up(zygote.control());
        matches!(&self.told, Told::Zygote { zygote, .. } if of_zygote(zygote))
            || hung_up(self.running.child.control.as_fd())
    }

    /// Tells a waiting sandbox to start the pool's interpreter, whose code comes later.
    fn start_interpreter(mut self, base: &Base) -> Result<Self, Error> {
        let fail = setup("start interpreter ahead");
        let sandbox = base.sandbox.clone().stdin(Stdin::Empty);
        let (host, _, mut ends) = streams(&sandbox, base.ready.payload.as_ref(), false, None)?;
        let (code_child, code) = pipe()?;
        let (input_child, input) = pipe()?;
        // A smaller one means that less code fits.
        let _ = rustix::pipe::fcntl_setpipe_size(&code, PIPE);
        not_blocking(&code)?;
        not_blocking(&input)?;
        ends.code = Some(launch::high(code_child).map_err(&fail)?);
        ends.stdio[0] = launch::high(input_child).map_err(&fail)?;
        self.order(base, &base.sandbox, &base.ready, ends)?;
        let Streams { stdout, stderr, value, .. } = host;
        self.told = Told::Begun { output: [stdout, stderr, value], input, code };
        Ok(self)
    }

    /// Tells a waiting sandbox its program.
    fn order(&self, base: &Base, sandbox: &Sandbox, ready: &Ready, ends: Ends) -> Result<(), Error> {
        let fail = setup("tell worker its program");
        let workspace = Path::new(plan::WORKSPACE);
        let mut all = vec![super::super::root::path(&ready.path)];
        all.extend(arguments(ready, &base.limits));
        let variables = variables(sandbox, None, ready, workspace, true, None);
        let folder = plan::start(workspace, sandbox.directory.as_deref());
        let content = written(&all, &variables, &super::super::root::path(folder));
        let file = launch::sealed(c"order", &content, false).map_err(&fail)?;
        let Ends { stdio: [stdin, stdout, stderr], value, code } = ends;
        let mut handed = vec![stdin.as_fd(), file.as_fd(), stdout.as_fd(), stderr.as_fd()];
        handed.extend(value.iter().chain(&code).map(|descriptor| descriptor.as_fd()));
        send(&self.running.child.control, b"o", &handed).map_err(|error| fail(error.into()))
    }

    /// Puts the files there, tells it what to run, and gives it as a run that has started. Whatever fails here happened
    /// before the program's first instruction.
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
            Workspace::Host(path) => {
                let layers = sandbox.layers.as_deref();
                let folder = HostFolder::open(path, &base.facts, layers, owner)?;
                Some(self.attach(base, folder)?)
            }
            Workspace::LiveHost(path) => {
                Some(self.attach(base, HostFolder::open_live(path, &base.facts, true)?)?)
            }
            _ => None,
        };
        if let Some(layer) = host.as_ref().and_then(HostFolder::layer) {
            layer.attend_to_others(sandbox.layers.as_deref(), &mut self.report.notes);
        }
        // What stands in a folder of the host for the run goes when the sandbox does, not before.
        let cleaner = host.is_none().then_some(cleaner);
        if let Told::Zygote { zygote, order } = &self.told
            && let Some(landlock) = &zygote.landlock
        {
            host_directory::lock(order, landlock)?;
        }
        if let Some(folder) = &host {
            let host_owner = base.facts.is_root().then(|| folder.owner());
            before = fill(folder, sandbox, &limits, host_owner, owner, true)?;
        } else {
            files::upload(self.folder.as_fd(), &sandbox.files, &limits, owner)?;
            if self.is_warm || !sandbox.files.is_empty() {
                before = files::list(self.folder.as_fd());
            }
        }
        if let Some(directory) = &sandbox.directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let folder = host.as_ref().map_or(self.folder.as_fd(), HostFolder::descriptor);
            files::open_beneath(folder, Path::new(directory), flags, Mode::empty()).map_err(|error| {
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
        let Self { mut running, folder, spent, mut report, names, told, .. } = self;
        running.cleaner = cleaner;
        running.child.begin(spent);
        running.child.keep(match told {
            Told::Zygote { zygote, .. } => Some(Box::new(zygote)),
            _ => None,
        });
        report.requested = sandbox.level;
        let folder = host.is_none().then_some(folder);
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
            directory: LiveDirectory::default(),
            home: None,
            folder,
        };
        Ok(Started { running, streams, names, kept })
    }

    /// Makes a folder of the host its workspace, protected as in a cold run.
    fn attach(&mut self, base: &Base, mut folder: HostFolder) -> Result<HostFolder, Error> {
        let process = self.running.child.pidfd.as_fd();
        let owner = match &self.told {
            Told::Zygote { zygote, .. } => zygote.pidfd(),
            _ => process,
        };
        host_directory::attach(base, &mut folder, process, owner)?;
        let Report { layers, missing, .. } = &mut self.report;
        layers.retain(|layer| *layer != Layer::WorkspaceQuota);
        let mut first = Vec::new();
        plan::describe(&folder, layers, &mut first);
        layers.sort_unstable();
        missing.splice(0..0, first);
        Ok(folder)
    }

    fn tell(&mut self, base: &Base, sandbox: &Sandbox, ready: &Ready) -> Result<Streams, Error> {
        let fail = setup("tell worker its code");
        match &mut self.told {
            Told::Zygote { order, .. } => {
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
                // It is in the fresh one already.
                if sandbox.directory.is_some() || !is_fresh {
                    let folder = plan::start(Path::new(plan::WORKSPACE), sandbox.directory.as_deref());
                    message.extend(folder.as_os_str().as_bytes());
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
            Told::Waiting => {
                let (host, _, ends) = streams(sandbox, ready.payload.as_ref(), false, None)?;
                self.order(base, sandbox, ready, ends)?;
                Ok(host)
            }
            Told::Begun { .. } => {
                let Told::Begun { output: [stdout, stderr, value], input, code } =
                    std::mem::replace(&mut self.told, Told::Waiting)
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

/// A program as the first process reads it.
fn written(arguments: &[CString], variables: &[CString], folder: &CString) -> Vec<u8> {
    let slots = 4 + arguments.len() + 1 + variables.len() + 1;
    let mut texts = Vec::new();
    let mut places = Vec::with_capacity(slots);
    let mut add = |text: &CString| {
        let place = slots * 8 + texts.len();
        texts.extend_from_slice(text.as_bytes_with_nul());
        place
    };
    let folder = add(folder);
    places.extend(arguments.iter().map(&mut add));
    places.push(0);
    places.extend(variables.iter().map(&mut add));
    places.push(0);
    let head = [slots * 8 + texts.len(), arguments.len(), variables.len(), folder];
    let numbers = head.into_iter().chain(places);
    let mut content: Vec<u8> = numbers.flat_map(|number| (number as u64).to_ne_bytes()).collect();
    content.extend(texts);
    content
}

/// Whether code fits into the pipe of an interpreter that was started ahead.
pub(super) fn code_fits(source: &str) -> bool {
    source.len() < PIPE - 4096
}

#[cfg(test)]
mod tests {
    use super::super::super::launch::c_string;
    use super::*;

    #[test]
    fn a_program_is_written_as_the_first_process_reads_it() {
        let text = |text: &str| c_string(text);
        let content = written(&[text("/bin/x"), text("y")], &[text("A=1")], &text("/w"));
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
