//! The sandbox that a session and its forks share, with its supervising thread and its zygote.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

use super::super::attend::{Started, explain, measurable};
use super::super::cgroup::Group;
use super::super::files::{self, Directory, Listing, Measure, Measured, Owner};
use super::super::layer::LiveLayer;
use super::super::prepare::{Place, Stay, level, prepare_with, setup};
use super::super::supervise::{Ended, Finished, Supervision, supervise};
use super::super::{Facts, launch, system_calls, tree};
use super::frame::{self, HEAD, MAX_PAYLOAD};
use super::member::{Member, nonce, send};
use super::{FileRules, roots};
use crate::language::{JAVASCRIPT_SESSION, PYTHON_SESSION};
use crate::running::Pipes;
use crate::session::SessionLimits;
use crate::{
    Cancel, Error, Host, Language, Layer, Level, Limits, MissingLayer, Program, Report, Sandbox,
    SandboxEvent, Stdin, Verdict, Workspace,
};
use toolpost_egress::{EgressLog, EgressProxy};

/// The time that an interpreter has to become ready.
pub(super) const READY_WITHIN: Duration = Duration::from_secs(20);
/// The maximum of captured errors of an interpreter that did not start.
const MAX_ERROR_TEXT: usize = 2000;

/// The end of a shared sandbox.
#[derive(Debug, Clone, Default)]
pub(super) struct Termination {
    pub(super) reason: String,
    pub(super) memory_kills: u64,
    pub(super) refused: u64,
    /// The verdict on the cell that ended it.
    pub(super) verdict: Option<Verdict>,
    /// The status of its main program, as `wait` returns it.
    pub(super) status: Option<i32>,
}

/// One sandbox with all of its members. Dropping it kills them.
#[derive(Debug)]
pub(super) struct SharedSandbox {
    cancel: Cancel,
    supervisor: Mutex<Option<JoinHandle<()>>>,
    termination: Arc<OnceLock<Termination>>,
    pub(super) group: Group,
    /// The first process.
    pub(super) pid: i32,
    pub(super) report: Report,
    pub(super) limits: Limits,
    /// The workspace path inside.
    pub(super) workspace: PathBuf,
    pub(super) owner: Option<Owner>,
    pub(super) facts: Facts,
    /// The reason why members cannot be forked, if they cannot.
    pub(super) not_forkable: Option<String>,
    /// Unused mount namespaces for forks, each with an empty workspace.
    pub(super) free_roots: Mutex<Vec<Arc<OwnedFd>>>,
    /// The egress proxy, if there is one.
    egress_proxy: SharedEgress,
    pub(super) layer: SharedLayer,
    /// The start settings, for a replacement.
    pub(super) start: (Sandbox, Language, SessionLimits),
    /// The socket of the zygote, an interpreter that has run no code. Without forks, that of the only member.
    pub(super) zygote: Mutex<OwnedFd>,
    pub(super) zygote_pid: i32,
    /// The interpreter pids of the members.
    pub(super) pids: Mutex<BTreeSet<i32>>,
    /// The number of members.
    pub(super) members: AtomicUsize,
    /// The maximum number of members.
    pub(super) most_members: usize,
}

impl SharedSandbox {
    /// The end report, if the sandbox is dead.
    pub(super) fn termination(&self) -> Option<&Termination> {
        self.termination.get()
    }

    /// Waits briefly for the end of a sandbox after one of its processes died.
    pub(super) fn termination_within(&self, most: Duration) -> Option<&Termination> {
        let until = Instant::now() + most;
        while self.termination.get().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.termination.get()
    }

    /// Whether its first process, and so everything in it, is dead or dying.
    pub(super) fn is_dying(&self) -> bool {
        tree::is_ending(self.pid)
    }

    /// Kills everything and waits until it is dead.
    pub(super) fn end(&self) {
        // A frozen process of cgroup version 1 cannot even be killed.
        self.group.freeze(false);
        self.cancel.cancel();
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(supervisor) = supervisor {
            // A panicked thread has dropped, and so killed, its sandbox.
            let _ = supervisor.join();
        }
        let layer = self.layer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(layer) = layer {
            // Changes that are not applied stay in the layer, and the next run in the directory reports them.
            let _ = layer.end();
        }
    }
}

impl Drop for SharedSandbox {
    fn drop(&mut self) {
        self.end();
    }
}

type SharedEgress = Arc<Mutex<Option<EgressProxy>>>;
/// The private layer of the host directory, if there is one.
type SharedLayer = Arc<Mutex<Option<LiveLayer>>>;

impl SharedSandbox {
    /// The egress log so far.
    pub(super) fn egress(&self) -> Option<EgressLog> {
        self.egress_proxy.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(EgressProxy::log)
    }

    /// The egress log at the end of a cell. Finished connections are logged a moment late.
    pub(super) fn egress_at_end(&self) -> Option<EgressLog> {
        const MOMENT: Duration = Duration::from_millis(50);
        let until = Instant::now() + MOMENT;
        loop {
            let log = self.egress()?;
            let is_whole = log.events.len() as u64 + log.events_left_out >= log.requests;
            if is_whole || Instant::now() >= until {
                return Some(log);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Creates the mount namespaces of forks and applies the file rules to the zygote, their directories
    /// included.
    fn create_roots(&mut self, rules: &FileRules) {
        // One more, because the first member may end before its forks.
        let made = roots::reserve(self, self.most_members);
        let directories = match made {
            Ok((free_roots, directories)) => {
                self.free_roots = Mutex::new(free_roots);
                directories
            }
            Err(error) => {
                self.not_forkable = Some(error.to_string());
                Vec::new()
            }
        };
        match self.lock_files(rules, &directories) {
            Ok(()) => {
                self.report.layers.push(Layer::LandlockFiles);
                self.report.layers.sort_unstable();
            }
            Err(error) => {
                let reason = format!("the rules for files could not be enforced: {error}");
                self.report.missing.push(MissingLayer { layer: Layer::LandlockFiles, reason });
            }
        }
    }

    fn lock_files(&self, rules: &FileRules, directories: &[OwnedFd]) -> Result<(), Error> {
        /// The number of descriptors per packet: a session may have a low limit.
        const DESCRIPTORS_PER_PACKET: usize = 16;
        let fail = |reason: String| setup("enforce landlock")(io::Error::other(reason));
        let zygote = self.zygote.lock().unwrap_or_else(PoisonError::into_inner);
        let mut parts: Vec<&[OwnedFd]> = directories.chunks(DESCRIPTORS_PER_PACKET).collect();
        if parts.is_empty() {
            parts.push(&[]);
        }
        let mut buffer = buffer();
        let count = parts.len();
        for (number, part) in parts.into_iter().enumerate() {
            let name = nonce()?;
            let payload = rules.describe(part.len(), number + 1 == count);
            let descriptors: Vec<BorrowedFd<'_>> = part.iter().map(OwnedFd::as_fd).collect();
            send(&zygote, &frame::encode(frame::request::LOCK, &name, &payload), &descriptors)?;
            if !wait_for(zygote.as_fd(), PollFlags::IN, READY_WITHIN) {
                return Err(fail("the zygote did not answer".into()));
            }
            let Packet::From(size, sender) = receive(&zygote, &mut buffer) else {
                return Err(fail("the interpreter has ended".into()));
            };
            let answer = buffer.get(..size).and_then(frame::decode).filter(|answer| {
                sender == self.zygote_pid && answer.letter == frame::reply::READY && answer.nonce == name
            });
            match answer {
                Some(answer) if answer.payload.is_empty() => {}
                Some(answer) => {
                    return Err(fail(crate::level::shorten(&String::from_utf8_lossy(answer.payload))));
                }
                None => return Err(fail("the zygote sent another answer".into())),
            }
        }
        Ok(())
    }
}

/// A message from the supervising thread to the starting one.
enum Progress {
    Started(Box<StartedSandbox>),
    Directory(OwnedFd, Listing),
    Failed(Error),
}

struct StartedSandbox {
    pid: i32,
    group: Group,
    report: Report,
    workspace: PathBuf,
    owner: Option<Owner>,
    /// A workspace that existed before the child.
    directory: Option<(Directory, Listing)>,
    is_private: bool,
    pipes: Option<Pipes>,
    rules: Option<FileRules>,
}

/// A packet socket: the host's end, on which the kernel adds the sender, and the far end.
pub(super) fn socket_pair() -> Result<(OwnedFd, OwnedFd), Error> {
    let fail = |error: Errno| setup("create control socket")(error.into());
    let (host, inside) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(fail)?;
    rustix::net::sockopt::set_socket_passcred(&host, true).map_err(fail)?;
    rustix::io::ioctl_fionbio(&host, true).map_err(fail)?;
    Ok((host, inside))
}

/// A packet from a socket.
pub(super) enum Packet {
    /// The size, and the sender's pid.
    From(usize, i32),
    /// Nothing for now.
    Nothing,
    /// The far end is closed.
    End,
}

/// Reads one packet and drops its descriptors.
pub(super) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Packet {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let read = rustix::net::recvmsg(socket, &mut [io::IoSliceMut::new(buffer)], &mut ancillary, flags);
    let size = match read {
        Ok(message) => message.bytes,
        Err(Errno::AGAIN | Errno::INTR) => return Packet::Nothing,
        Err(_) => return Packet::End,
    };
    let sender = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials.pid.as_raw_nonzero().get()),
        _ => None,
    });
    // An empty packet has a sender; the end of the stream has none.
    if size == 0 && sender.is_none() {
        return Packet::End;
    }
    Packet::From(size, sender.unwrap_or(0))
}

/// Waits until a descriptor is ready.
pub(super) fn wait_for(descriptor: BorrowedFd<'_>, flags: PollFlags, most: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: most.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: most.subsec_nanos().into(),
    };
    let mut waiting = [PollFd::from_borrowed_fd(descriptor, flags)];
    poll(&mut waiting, Some(&timeout)).is_ok_and(|count| count > 0)
}

pub(super) fn buffer() -> Vec<u8> {
    vec![0u8; HEAD + MAX_PAYLOAD + 1]
}

/// The environment and limits of a persistent interpreter.
fn adapted(sandbox: &Sandbox, limits: &Limits) -> Sandbox {
    let mut sandbox = sandbox.clone();
    let set = [
        ("MPLBACKEND", "Agg"),
        // Caches of libraries are not artifacts.
        ("XDG_CACHE_HOME", "/tmp/.cache"),
        // Huge pages: a fork then copies page tables that are 500 times smaller.
        ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
    ];
    for (name, value) in set {
        if !sandbox.environment.iter().any(|(other, _)| other == name) {
            sandbox.environment.push((name.to_owned(), value.into()));
        }
    }
    // The kernel would add up the time of all cells.
    sandbox.limits = Some(Limits { cpu: None, idle: None, ..limits.clone() });
    sandbox.stdin = Stdin::Empty;
    sandbox
}

/// The reason why interpreters in this sandbox cannot be forked, if they cannot.
fn not_forkable(
    sandbox: &Sandbox,
    language: Language,
    facts: &Facts,
    level: Level,
    limits: &SessionLimits,
) -> Option<String> {
    let reason = if !uses_zygote(language) {
        "Node.js has several threads, and a fork copies one; only Python sessions can be forked"
    } else if limits.forks == 0 {
        "the limit `forks` is 0"
    } else if facts.namespaces.is_err() || (facts.is_root() && !facts.user_namespaces) {
        "this host denies the namespaces for a fork's workspace"
    } else if level > Level::Strict {
        "level `maximum` grants no capability, and a fork needs `CAP_SYS_CHROOT`"
    } else if !level.is_boundary() {
        "at level `minimal` an interpreter uses the host's files, which cannot be copied"
    } else if !matches!(sandbox.workspace, Workspace::Fresh) {
        "its workspace is a host directory; a fork can copy only a fresh workspace"
    } else {
        return None;
    };
    Some(reason.to_owned())
}

/// Whether members are forks of a zygote.
fn uses_zygote(language: Language) -> bool {
    language == Language::Python
}

/// Starts a shared sandbox and its first member.
pub(super) fn start(sandbox: &Sandbox, language: Language, limits: &SessionLimits) -> Result<Member, Error> {
    if !matches!(language, Language::Python | Language::JavaScript) {
        return Err(Error::SessionRejected {
            action: "a session",
            reason: format!("sessions run python and javascript, not {language}"),
            hint: "run the code without a session, or start one in python or javascript",
        });
    }
    let host = sandbox.host.as_ref().unwrap_or_else(|| Host::probe());
    let facts = host.facts.clone();
    let level = level(sandbox)?;
    if !facts.calls.pidfd_open {
        return Err(Error::SessionRejected {
            action: "a session",
            reason: "this kernel lacks pidfds".into(),
            hint: "use Linux 5.3 or later, allow `pidfd_open` in a container, or run without a session",
        });
    }
    let not_forkable = not_forkable(sandbox, language, &facts, level, limits);
    let of_all = sandbox.limits_at(level);
    let (control, inside) = socket_pair()?;
    let cancel = Cancel::new();
    let termination = Arc::new(OnceLock::new());
    let egress_proxy = SharedEgress::default();
    let layer = SharedLayer::default();
    let (sender, news) = sync_channel(2);
    // The first process dies with the thread that started it, so it gets its own thread.
    let supervisor = {
        let (egress_proxy, layer) = (Arc::clone(&egress_proxy), Arc::clone(&layer));
        let (sandbox, cancel, termination) =
            (adapted(sandbox, &of_all), cancel.clone(), Arc::clone(&termination));
        let (forkable, total) = (not_forkable.is_none(), limits.total);
        std::thread::Builder::new()
            .name("sandbox session".into())
            .spawn(move || {
                let watched = watch(
                    &sandbox,
                    language,
                    inside,
                    forkable,
                    total,
                    &cancel,
                    &sender,
                    &egress_proxy,
                    &layer,
                );
                let left = watched.unwrap_or_else(|error| {
                    let left = Termination { reason: error.to_string(), ..Termination::default() };
                    // It has no receiver if the session was already handed over.
                    let _ = sender.try_send(Progress::Failed(error));
                    left
                });
                // Set once, here.
                let _ = termination.set(left);
            })
            .map_err(setup("start a thread"))?
    };
    let mut supervisor = Supervisor { handle: Some(supervisor), cancel };
    let beginning = begin(&news)?;
    let StartedSandbox { pid, group, mut report, workspace, owner, directory, is_private, pipes, rules } =
        *beginning;
    let directory = match directory {
        None if is_private => Some(first_directory(&news)?),
        other => other,
    };
    let (zygote_pid, pipes) = ready(&control, pipes, &news)?;
    if egress_proxy.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
        report.layers.push(Layer::Egress);
        report.layers.sort_unstable();
    }
    // The only member uses the socket of the zygote.
    let lone = match pipes.filter(|_| !uses_zygote(language)) {
        Some(pipes) => Some((launch::duplicate(control.as_fd()).map_err(setup("keep socket"))?, pipes)),
        None => None,
    };
    let (handle, cancel) = supervisor.keep();
    let mut shared = SharedSandbox {
        cancel,
        supervisor: Mutex::new(handle),
        termination,
        group,
        pid,
        report,
        limits: of_all,
        workspace,
        owner,
        facts,
        not_forkable,
        free_roots: Mutex::default(),
        egress_proxy,
        layer,
        start: (sandbox.clone(), language, limits.clone()),
        zygote: Mutex::new(control),
        zygote_pid,
        pids: Mutex::default(),
        members: AtomicUsize::new(0),
        most_members: limits.forks as usize + 1,
    };
    if let Some(rules) = rules {
        shared.create_roots(&rules);
    }
    let shared = Arc::new(shared);
    let (directory, before) = directory
        .map_or((None, Listing::default()), |(directory, before)| (Some(Arc::new(directory)), before));
    match lone {
        Some((socket, pipes)) => Member::only(&shared, socket, pipes, directory, before),
        None => Member::first(&shared, directory, before),
    }
}

/// The supervising thread until the shared sandbox owns it. Dropping it ends what it started.
struct Supervisor {
    handle: Option<JoinHandle<()>>,
    cancel: Cancel,
}

impl Supervisor {
    fn keep(&mut self) -> (Option<JoinHandle<()>>, Cancel) {
        (self.handle.take(), self.cancel.clone())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.cancel.cancel();
            // Its error was sent as a message.
            let _ = handle.join();
        }
    }
}

fn next(news: &Receiver<Progress>) -> Result<Progress, Error> {
    let lost = |reason: &str| setup("start interpreter")(io::Error::other(reason.to_owned()));
    match news.recv_timeout(READY_WITHIN) {
        Ok(Progress::Failed(error)) => Err(error),
        Ok(other) => Ok(other),
        Err(RecvTimeoutError::Timeout) => Err(lost("its set-up timed out after 20 s")),
        Err(RecvTimeoutError::Disconnected) => Err(lost("the supervising thread ended early")),
    }
}

fn begin(news: &Receiver<Progress>) -> Result<Box<StartedSandbox>, Error> {
    match next(news)? {
        Progress::Started(beginning) => Ok(beginning),
        _ => Err(setup("start interpreter")(io::Error::other("it sent an unexpected set-up message"))),
    }
}

fn first_directory(news: &Receiver<Progress>) -> Result<(Directory, Listing), Error> {
    match next(news)? {
        Progress::Directory(descriptor, before) => Ok((Directory::new(descriptor), before)),
        _ => Err(setup("start interpreter")(io::Error::other("it sent an unexpected set-up message"))),
    }
}

/// Waits for the zygote and returns its pid. The error includes the zygote's error output.
fn ready(
    control: &OwnedFd,
    pipes: Option<Pipes>,
    news: &Receiver<Progress>,
) -> Result<(i32, Option<Pipes>), Error> {
    let fail = setup("start interpreter");
    let mut buffer = buffer();
    if wait_for(control.as_fd(), PollFlags::IN, READY_WITHIN)
        && let Packet::From(size, sender) = receive(control, &mut buffer)
        && let Some(frame) = buffer.get(..size).and_then(frame::decode)
        && frame.letter == frame::reply::READY
    {
        return Ok((sender, pipes));
    }
    if let Ok(Progress::Failed(error)) = news.recv_timeout(Duration::from_secs(1)) {
        return Err(error);
    }
    let mut complaint = Vec::new();
    if let Some(pipes) = pipes {
        let stderr = OwnedFd::from(pipes.stderr);
        if rustix::io::ioctl_fionbio(&stderr, true).is_ok() {
            complaint.resize(MAX_ERROR_TEXT, 0);
            let size = rustix::io::read(&stderr, &mut complaint).unwrap_or(0);
            complaint.truncate(size);
        }
    }
    let text = crate::level::shorten(String::from_utf8_lossy(&complaint).trim());
    Err(fail(io::Error::other(format!("the interpreter was not ready: {text}"))))
}

/// The supervising thread: starts the sandbox and waits until everything in it is dead.
#[expect(clippy::too_many_arguments, reason = "what a thread is given, in one place")]
fn watch(
    sandbox: &Sandbox,
    language: Language,
    inside: OwnedFd,
    forkable: bool,
    total: Option<Duration>,
    cancel: &Cancel,
    sender: &SyncSender<Progress>,
    egress_proxy: &SharedEgress,
    shared_layer: &SharedLayer,
) -> Result<Termination, Error> {
    let since = Instant::now();
    let mut workspace = PathBuf::new();
    let mut arguments = |place: &Path| {
        place.clone_into(&mut workspace);
        let start = sandbox.directory.as_ref().map_or_else(|| place.to_owned(), |inner| place.join(inner));
        let text = |path: &Path| String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned();
        let options = serde_json::json!({
            "workspace": text(place), "start": text(&start), "forks": forkable,
            "packages": sandbox.modules.iter().filter(|modules| modules.serves(language))
                .map(|modules| text(modules.search())).collect::<Vec<_>>(),
        });
        let options = options.to_string();
        match language {
            Language::JavaScript => ["-e", JAVASCRIPT_SESSION, &options].map(OsString::from).to_vec(),
            _ => ["-I", "-c", PYTHON_SESSION, &options].map(OsString::from).to_vec(),
        }
    };
    let mut rules = None;
    let stay = Stay { control: inside, arguments: &mut arguments, rules: &mut rules, forkable };
    let prepared = prepare_with(sandbox, &Program::code(language, ""), true, Some(stay))?;
    let (Started { mut running, streams, names, mut kept }, mut pipes) = prepared.start()?;
    if let Some(pipes) = &mut pipes {
        pipes.stdin = None;
    }
    let duplicate =
        |descriptor: BorrowedFd<'_>| launch::duplicate(descriptor).map_err(setup("keep workspace"));
    let (mut measured, mut directory, mut guard) = (None, None, None);
    let is_private = match &kept.place {
        Place::Private | Place::Copy(_) => true,
        Place::Host(host) => host.layer().is_some(),
        _ => false,
    };
    let mut layer = None;
    let mut measured_before = Measure::default();
    match kept.place {
        Place::Private | Place::Plain(_) => {}
        Place::Temporary(temporary) => {
            if measurable(temporary.descriptor(), &mut kept.report).is_some() {
                measured = Some(duplicate(temporary.descriptor())?);
            }
            let descriptor = duplicate(temporary.descriptor())?;
            directory =
                Some((Directory { _temporary: Some(temporary), ..Directory::new(descriptor) }, kept.before));
        }
        Place::Host(host) if host.layer().is_some() => {
            if let Some(found) = host.into_layer() {
                if measurable(found.upper(), &mut kept.report).is_some() {
                    measured = Some(duplicate(found.upper())?);
                }
                layer = Some(LiveLayer::new(found, sandbox, kept.limits.clone()));
            }
        }
        Place::Copy(copied) => {
            if measurable(copied.copy.directory(), &mut kept.report).is_some() {
                measured = Some(duplicate(copied.copy.directory())?);
                measured_before = copied.measure;
            }
            let before = files::list(copied.copy.directory());
            directory = Some((Directory::new(duplicate(copied.copy.directory())?), before));
            layer = Some(LiveLayer::of_copy(copied.copy, sandbox, kept.limits.clone()));
        }
        Place::Host(host) => {
            if !host.is_read_only() {
                let before = files::list(host.descriptor());
                directory = Some((Directory::new(duplicate(host.descriptor())?), before));
            }
            guard = Some(host);
        }
    }
    let level = kept.report.effective;
    let beginning = StartedSandbox {
        pid: running.child.pid,
        group: running.group.view(),
        report: kept.report,
        workspace,
        owner: kept.owner,
        directory,
        is_private,
        pipes,
        rules,
    };
    let has_layer = layer.is_some();
    *shared_layer.lock().unwrap_or_else(PoisonError::into_inner) = layer;
    // Without a receiver, the flag is set and the loop below ends at once.
    let _ = sender.send(Progress::Started(Box::new(beginning)));
    let own = kept.limits;
    let wall = total.unwrap_or(Duration::from_secs(u64::from(u32::MAX)));
    let limits = Limits { wall, ..own.clone() };
    let mut on_directory = |descriptor: BorrowedFd<'_>| {
        if !has_layer {
            files::upload(descriptor, &sandbox.files, &own, kept.owner)?;
        }
        let _ = sender.send(Progress::Directory(duplicate(descriptor)?, files::list(descriptor)));
        Ok(())
    };
    let mut armed = kept.egress;
    let mut on_listener = |listener: OwnedFd| {
        if let Some(armed) = armed.take() {
            let started = armed.start(listener.into(), own.network_bytes);
            let proxy = started.map_err(setup("start egress proxy"))?;
            *egress_proxy.lock().unwrap_or_else(PoisonError::into_inner) = Some(proxy);
        }
        Ok(())
    };
    let measured: Vec<Measured<'_>> = measured
        .iter()
        .map(|measured| Measured { directory: measured.as_fd(), before: measured_before })
        .chain(
            kept.home
                .iter()
                .filter(|_| level.is_boundary())
                .map(|home| Measured { directory: home.descriptor(), before: Measure::default() }),
        )
        .collect();
    let finished = supervise(Supervision {
        running: &mut running,
        streams,
        limits: &limits,
        level,
        cancel,
        on_event: &mut |_: SandboxEvent<'_>| {},
        started: since,
        on_directory: &mut on_directory,
        child_waits: kept.child_waits,
        on_listener: &mut on_listener,
        measured: &measured,
    });
    let termination = Termination {
        reason: String::new(),
        memory_kills: running.group.memory_kills(),
        refused: running.group.refused_processes(),
        verdict: None,
        status: None,
    };
    drop(running);
    // Close open requests. The last cell has its log by now, or has none.
    let proxy = egress_proxy.lock().unwrap_or_else(PoisonError::into_inner).take();
    drop(proxy);
    drop(guard);
    let Finished { ended, status, .. } =
        finished.map_err(|failure| explain(failure, &names, &kept.program))?;
    let verdict = match ended {
        Some(Ended::Memory) => Some(Verdict::Memory { limit: own.memory }),
        Some(Ended::Processes) => Some(Verdict::Processes { limit: own.processes }),
        Some(Ended::Disk) => Some(Verdict::Disk { limit: own.workspace_bytes }),
        Some(Ended::Inodes) => Some(Verdict::Inodes { limit: own.workspace_inodes }),
        Some(Ended::Denied(call)) => Some(Verdict::Denied { rule: system_calls::rule(call) }),
        None if termination.memory_kills > 0 => Some(Verdict::Memory { limit: own.memory }),
        _ => None,
    };
    let reason = match (&verdict, ended) {
        (Some(Verdict::Memory { limit }), _) => {
            format!("its processes used more than {limit} bytes of memory")
        }
        (Some(Verdict::Processes { limit }), _) => format!("it had more than {limit} processes"),
        (Some(Verdict::Disk { limit }), _) => format!("its workspace held more than {limit} bytes"),
        (Some(Verdict::Inodes { limit }), _) => format!("its workspace held more than {limit} files"),
        (Some(Verdict::Denied { rule }), _) => format!("a process made a blocked call: {rule}"),
        (_, Some(Ended::Timeout)) => format!("it reached the limit `total`, {} s", wall.as_secs()),
        (_, Some(_)) => "the host program ended it".into(),
        (_, None) => "its first interpreter died".into(),
    };
    Ok(Termination { reason, verdict, status: status.map(|status| status.wait), ..termination })
}

/// Counts a member as long as it lives.
#[derive(Debug)]
pub(super) struct MemberSlot(Arc<SharedSandbox>);

impl MemberSlot {
    /// Reserves a member, if the limit allows one more.
    pub(super) fn take(shared: &Arc<SharedSandbox>) -> Result<Self, Error> {
        let most = shared.most_members.max(1);
        let taken = shared
            .members
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| (count < most).then_some(count + 1));
        if taken.is_ok() {
            return Ok(Self(Arc::clone(shared)));
        }
        Err(Error::SessionRejected {
            action: "fork",
            reason: format!("the session and its forks are already {most} interpreters"),
            hint: "end some of them, or raise the limit `forks`",
        })
    }
}

impl Drop for MemberSlot {
    fn drop(&mut self) {
        self.0.members.fetch_sub(1, Ordering::SeqCst);
    }
}
