//! The family of a session: its sandbox, the thread that watches it, and the origin of its members.

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
use super::super::files::{self, Folder, Listing, Owner};
use super::super::layer::{Admitted, LiveLayer};
use super::super::prepare::{Place, Stay, level, prepare_with, setup};
use super::super::supervise::{Ended, Finished, Supervision, supervise};
use super::super::{Facts, allowlist, launch, tree};
use super::frame::{self, HEAD, LARGEST};
use super::member::{Member, nonce, send};
use super::{FileRules, roots};
use crate::language::PYTHON_SESSION;
use crate::running::Pipes;
use crate::session::SessionLimits;
use crate::{
    Cancel, Error, Event, Host, Language, Layer, Level, Limits, MissingLayer, Program, Report, Sandbox,
    Stdin, Verdict, Workspace,
};
use toolpost_egress::{EgressLog, EgressProxy};

const JAVASCRIPT: &str = include_str!("../../../drivers/session.js");
/// An interpreter that is not ready after this time never will be.
pub(super) const READY_WITHIN: Duration = Duration::from_secs(20);
/// What is kept of the errors of an interpreter that did not start.
const MAXIMUM_COMPLAINT: usize = 2000;

/// How a family ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Remains {
    pub(super) reason: String,
    pub(super) memory_kills: u64,
    pub(super) refused: u64,
    /// The verdict on the cell that ended it.
    pub(super) verdict: Option<Verdict>,
    /// How its main program ended, in the form of `wait`.
    pub(super) status: Option<i32>,
}

/// One sandbox with everything that lives in it. Dropped, it dies.
#[derive(Debug)]
pub(super) struct Family {
    cancel: Cancel,
    supervisor: Mutex<Option<JoinHandle<()>>>,
    remains: Arc<OnceLock<Remains>>,
    pub(super) group: Group,
    /// The first process.
    pub(super) pid: i32,
    pub(super) report: Report,
    pub(super) limits: Limits,
    /// The workspace as the code sees it.
    pub(super) workspace: PathBuf,
    pub(super) owner: Option<Owner>,
    pub(super) facts: Facts,
    /// Why no member can be forked, if none can.
    pub(super) not_forkable: Option<String>,
    /// The mount namespaces in which forks can live, each with an empty workspace, as far as nobody does.
    pub(super) rooms: Mutex<Vec<Arc<OwnedFd>>>,
    /// The way out, if there is one.
    way_out: WayOut,
    pub(super) layer: SharedLayer,
    /// What it was started with, for one that is started in its place.
    pub(super) start: (Sandbox, Language, SessionLimits),
    /// Who makes members that have run nothing. Without forks the one member is in its place.
    pub(super) origin: Mutex<OwnedFd>,
    pub(super) origin_pid: i32,
    /// The interpreters of the members.
    pub(super) pids: Mutex<BTreeSet<i32>>,
    /// How many members there are.
    pub(super) members: AtomicUsize,
    /// How many there may be.
    pub(super) most_members: usize,
}

impl Family {
    /// What is left of it, if it is dead.
    pub(super) fn remains(&self) -> Option<&Remains> {
        self.remains.get()
    }

    /// Waits shortly for the end of a family of which a process has gone.
    pub(super) fn remains_within(&self, most: Duration) -> Option<&Remains> {
        let until = Instant::now() + most;
        while self.remains.get().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.remains.get()
    }

    /// Whether its first process, and so all of it, has ended or is about to.
    pub(super) fn is_dying(&self) -> bool {
        tree::is_ending(self.pid)
    }

    /// Kills everything and waits until it is dead.
    pub(super) fn end(&self) {
        // What a freezer of version 1 holds cannot even be killed.
        self.group.freeze(false);
        self.cancel.cancel();
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(supervisor) = supervisor {
            // A thread that panicked has dropped, and so killed, what it watched.
            let _ = supervisor.join();
        }
        let layer = self.layer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(layer) = layer {
            // What fails to be applied stays in the layer, and the next run in the directory says so.
            let _ = layer.end();
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.end();
    }
}

type WayOut = Arc<Mutex<Option<EgressProxy>>>;
/// The private layer of the family's host directory, if it has one.
type SharedLayer = Arc<Mutex<Option<LiveLayer>>>;

impl Family {
    /// What went through the way out so far.
    pub(super) fn egress(&self) -> Option<EgressLog> {
        self.way_out.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(EgressProxy::log)
    }

    /// The same at the end of a cell: what is over for the program is in the log a moment later.
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

    /// Makes the places of forks, and puts the origin under the rules for files, theirs included.
    fn make_room(&mut self, rules: &FileRules) {
        // One more than may live at one time beside the first member, which may end before them.
        let made = roots::reserve(self, self.most_members);
        let folders = match made {
            Ok((rooms, folders)) => {
                self.rooms = Mutex::new(rooms);
                folders
            }
            Err(error) => {
                self.not_forkable = Some(error.to_string());
                Vec::new()
            }
        };
        match self.lock_files(rules, &folders) {
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

    fn lock_files(&self, rules: &FileRules, folders: &[OwnedFd]) -> Result<(), Error> {
        /// So many descriptors go with one packet: a session may have few.
        const AT_ONCE: usize = 16;
        let fail = |reason: String| setup("enforce landlock")(io::Error::other(reason));
        let origin = self.origin.lock().unwrap_or_else(PoisonError::into_inner);
        let mut parts: Vec<&[OwnedFd]> = folders.chunks(AT_ONCE).collect();
        if parts.is_empty() {
            parts.push(&[]);
        }
        let mut buffer = buffer();
        let count = parts.len();
        for (number, part) in parts.into_iter().enumerate() {
            let name = nonce()?;
            let payload = rules.describe(part.len(), number + 1 == count);
            let descriptors: Vec<BorrowedFd<'_>> = part.iter().map(OwnedFd::as_fd).collect();
            send(&origin, &frame::encode(frame::ask::LOCK, &name, &payload), &descriptors)?;
            if !wait_for(origin.as_fd(), PollFlags::IN, READY_WITHIN) {
                return Err(fail("no answer came".into()));
            }
            let Packet::From(size, sender) = receive(&origin, &mut buffer) else {
                return Err(fail("the interpreter has ended".into()));
            };
            let answer = buffer.get(..size).and_then(frame::decode).filter(|answer| {
                sender == self.origin_pid && answer.letter == frame::tell::READY && answer.nonce == name
            });
            match answer {
                Some(answer) if answer.payload.is_empty() => {}
                Some(answer) => {
                    return Err(fail(crate::level::shorten(&String::from_utf8_lossy(answer.payload))));
                }
                None => return Err(fail("another answer came".into())),
            }
        }
        Ok(())
    }
}

/// What the watching thread tells who started it.
enum News {
    Started(Box<Beginning>),
    Folder(OwnedFd, Listing),
    Failed(Error),
}

struct Beginning {
    pid: i32,
    group: Group,
    report: Report,
    workspace: PathBuf,
    owner: Option<Owner>,
    /// A workspace that was there before the child.
    folder: Option<(Folder, Listing)>,
    is_private: bool,
    pipes: Option<Pipes>,
    rules: Option<FileRules>,
}

/// A socket of packets: the host's end, to which the kernel adds who sent a packet, and the other.
pub(super) fn socket_pair() -> Result<(OwnedFd, OwnedFd), Error> {
    let fail = |error: Errno| setup("make control socket")(error.into());
    let (host, inside) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(fail)?;
    rustix::net::sockopt::set_socket_passcred(&host, true).map_err(fail)?;
    rustix::io::ioctl_fionbio(&host, true).map_err(fail)?;
    Ok((host, inside))
}

/// What came over a socket.
pub(super) enum Packet {
    /// This many bytes, from the process with this number.
    From(usize, i32),
    /// Nothing for now.
    Nothing,
    /// The other end is gone.
    End,
}

/// Reads one packet. Descriptors that come with it are not taken.
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
    // A packet without bytes has a sender; the end has none.
    if size == 0 && sender.is_none() {
        return Packet::End;
    }
    Packet::From(size, sender.unwrap_or(0))
}

/// Waits until a descriptor is readable.
pub(super) fn wait_for(descriptor: BorrowedFd<'_>, flags: PollFlags, most: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: most.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: most.subsec_nanos().into(),
    };
    let mut waiting = [PollFd::from_borrowed_fd(descriptor, flags)];
    poll(&mut waiting, Some(&timeout)).is_ok_and(|count| count > 0)
}

pub(super) fn buffer() -> Vec<u8> {
    vec![0u8; HEAD + LARGEST + 1]
}

/// The environment and limits under which an interpreter stays.
fn adapted(sandbox: &Sandbox, limits: &Limits) -> Sandbox {
    let mut sandbox = sandbox.clone();
    let set = [
        ("MPLBACKEND", "Agg"),
        // What libraries keep for themselves is no artifact.
        ("XDG_CACHE_HOME", "/tmp/.cache"),
        // Large pages: a fork copies the tables of the memory, which are 500 times smaller with them.
        ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
    ];
    for (name, value) in set {
        if !sandbox.environment.iter().any(|(other, _)| other == name) {
            sandbox.environment.push((name.to_owned(), value.into()));
        }
    }
    // The kernel would count the time of all cells together.
    sandbox.limits = Some(Limits { cpu: None, idle: None, ..limits.clone() });
    sandbox.stdin = Stdin::Empty;
    sandbox
}

/// Why an interpreter in this sandbox cannot be forked, if it cannot.
fn not_forkable(
    sandbox: &Sandbox,
    language: Language,
    facts: &Facts,
    level: Level,
    limits: &SessionLimits,
) -> Option<String> {
    let reason = if !has_origin(language) {
        "Node.js has threads, of which a fork would copy one; an interpreter of python can be forked"
    } else if limits.forks == 0 {
        "the limit `forks` is 0"
    } else if facts.namespaces.is_err() || (facts.is_root() && !facts.user_namespaces) {
        "this host refuses the namespaces in which a fork gets a workspace of its own"
    } else if level > Level::Strict {
        "level `maximum` leaves an interpreter no capability, and a fork needs the right to change its own root"
    } else if !level.is_boundary() {
        "at level `minimal` an interpreter works among the host's files, which cannot be copied"
    } else if !matches!(sandbox.workspace, Workspace::Fresh) {
        "its workspace is a folder of the host, which is not copied for a fork; only a fresh workspace is"
    } else {
        return None;
    };
    Some(reason.to_owned())
}

/// Whether members are forks of an interpreter that runs nothing itself.
fn has_origin(language: Language) -> bool {
    language == Language::Python
}

/// Starts a family and its first member.
pub(super) fn start(sandbox: &Sandbox, language: Language, limits: &SessionLimits) -> Result<Member, Error> {
    if !matches!(language, Language::Python | Language::JavaScript) {
        return Err(Error::SessionRejected {
            action: "a session",
            reason: format!("no interpreter of {language} stays; those of python and javascript do"),
            hint: "run the code by itself, or start a session of python or javascript",
        });
    }
    let host = sandbox.host.as_ref().unwrap_or_else(|| Host::probe());
    let facts = host.facts.clone();
    let level = level(sandbox)?;
    if !facts.calls.pidfd_open {
        return Err(Error::SessionRejected {
            action: "a session",
            reason: "this kernel gives no descriptors of processes, by which an interpreter is known".into(),
            hint: "use Linux 5.3 or later, and in a container a filter that knows `pidfd_open`; or run the code by itself",
        });
    }
    let not_forkable = not_forkable(sandbox, language, &facts, level, limits);
    let of_all = sandbox.limits_at(level);
    let (control, inside) = socket_pair()?;
    let cancel = Cancel::new();
    let remains = Arc::new(OnceLock::new());
    let way_out = WayOut::default();
    let layer = SharedLayer::default();
    let (sender, news) = sync_channel(2);
    // The first process dies with the thread that made it: it gets one that lives as long as it does.
    let supervisor = {
        let (way_out, layer) = (Arc::clone(&way_out), Arc::clone(&layer));
        let (sandbox, cancel, remains) = (adapted(sandbox, &of_all), cancel.clone(), Arc::clone(&remains));
        let (forkable, total) = (not_forkable.is_none(), limits.total);
        std::thread::Builder::new()
            .name("sandbox session".into())
            .spawn(move || {
                let watched =
                    watch(&sandbox, language, inside, forkable, total, &cancel, &sender, &way_out, &layer);
                let left = watched.unwrap_or_else(|error| {
                    let left = Remains { reason: error.to_string(), ..Remains::default() };
                    // Nobody waits for it if the session was already given away.
                    let _ = sender.try_send(News::Failed(error));
                    left
                });
                // Set once, here.
                let _ = remains.set(left);
            })
            .map_err(setup("start a thread"))?
    };
    let mut supervisor = Supervisor { handle: Some(supervisor), cancel };
    let beginning = begin(&news)?;
    let Beginning { pid, group, mut report, workspace, owner, folder, is_private, pipes, rules } = *beginning;
    let folder = match folder {
        None if is_private => Some(first_folder(&news)?),
        other => other,
    };
    let (origin_pid, pipes) = ready(&control, pipes, &news)?;
    if way_out.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
        report.layers.push(Layer::Egress);
        report.layers.sort_unstable();
    }
    // The one member talks over the socket of the origin.
    let lone = match pipes.filter(|_| !has_origin(language)) {
        Some(pipes) => Some((launch::duplicate(control.as_fd()).map_err(setup("keep socket"))?, pipes)),
        None => None,
    };
    let (handle, cancel) = supervisor.keep();
    let mut family = Family {
        cancel,
        supervisor: Mutex::new(handle),
        remains,
        group,
        pid,
        report,
        limits: of_all,
        workspace,
        owner,
        facts,
        not_forkable,
        rooms: Mutex::default(),
        way_out,
        layer,
        start: (sandbox.clone(), language, limits.clone()),
        origin: Mutex::new(control),
        origin_pid,
        pids: Mutex::default(),
        members: AtomicUsize::new(0),
        most_members: limits.forks as usize + 1,
    };
    if let Some(rules) = rules {
        family.make_room(&rules);
    }
    let family = Arc::new(family);
    let (folder, before) =
        folder.map_or((None, Listing::default()), |(folder, before)| (Some(Arc::new(folder)), before));
    match lone {
        Some((socket, pipes)) => Member::lone(&family, socket, pipes, folder, before),
        None => Member::first(&family, folder, before),
    }
}

/// The thread until its family takes it over: dropped before, it ends what it started.
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
            // Its failure was told by its message.
            let _ = handle.join();
        }
    }
}

fn next(news: &Receiver<News>) -> Result<News, Error> {
    let lost = |reason: &str| setup("start interpreter")(io::Error::other(reason.to_owned()));
    match news.recv_timeout(READY_WITHIN) {
        Ok(News::Failed(error)) => Err(error),
        Ok(other) => Ok(other),
        Err(RecvTimeoutError::Timeout) => Err(lost("it was not set up within 20 s")),
        Err(RecvTimeoutError::Disconnected) => Err(lost("the watching thread ended early")),
    }
}

fn begin(news: &Receiver<News>) -> Result<Box<Beginning>, Error> {
    match next(news)? {
        News::Started(beginning) => Ok(beginning),
        _ => Err(setup("start interpreter")(io::Error::other("it was not set up in order"))),
    }
}

fn first_folder(news: &Receiver<News>) -> Result<(Folder, Listing), Error> {
    match next(news)? {
        News::Folder(descriptor, before) => Ok((Folder::new(descriptor), before)),
        _ => Err(setup("start interpreter")(io::Error::other("it was not set up in order"))),
    }
}

/// Waits for the origin and gives its number. What it complains about is part of the error.
fn ready(
    control: &OwnedFd,
    pipes: Option<Pipes>,
    news: &Receiver<News>,
) -> Result<(i32, Option<Pipes>), Error> {
    let fail = setup("start interpreter");
    let mut buffer = buffer();
    if wait_for(control.as_fd(), PollFlags::IN, READY_WITHIN)
        && let Packet::From(size, sender) = receive(control, &mut buffer)
        && let Some(frame) = buffer.get(..size).and_then(frame::decode)
        && frame.letter == frame::tell::READY
    {
        return Ok((sender, pipes));
    }
    if let Ok(News::Failed(error)) = news.recv_timeout(Duration::from_secs(1)) {
        return Err(error);
    }
    let mut complaint = Vec::new();
    if let Some(pipes) = pipes {
        let stderr = OwnedFd::from(pipes.stderr);
        if rustix::io::ioctl_fionbio(&stderr, true).is_ok() {
            complaint.resize(MAXIMUM_COMPLAINT, 0);
            let size = rustix::io::read(&stderr, &mut complaint).unwrap_or(0);
            complaint.truncate(size);
        }
    }
    let text = crate::level::shorten(String::from_utf8_lossy(&complaint).trim());
    Err(fail(io::Error::other(format!("the interpreter was not ready: {text}"))))
}

/// The watching thread: starts the sandbox and stays until everything in it is dead.
#[expect(clippy::too_many_arguments, reason = "what a thread is given, in one place")]
fn watch(
    sandbox: &Sandbox,
    language: Language,
    inside: OwnedFd,
    forkable: bool,
    total: Option<Duration>,
    cancel: &Cancel,
    sender: &SyncSender<News>,
    way_out: &WayOut,
    shared_layer: &SharedLayer,
) -> Result<Remains, Error> {
    let since = Instant::now();
    let mut workspace = PathBuf::new();
    let mut arguments = |place: &Path| {
        place.clone_into(&mut workspace);
        let start = sandbox.directory.as_ref().map_or_else(|| place.to_owned(), |inner| place.join(inner));
        let text = |path: &Path| String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned();
        let options = serde_json::json!({
            "workspace": text(place), "start": text(&start), "forks": forkable,
            "packages": sandbox.packages.iter().filter(|packages| packages.serves(language))
                .map(|packages| text(&packages.modules())).collect::<Vec<_>>(),
        });
        let options = options.to_string();
        match language {
            Language::JavaScript => ["-e", JAVASCRIPT, &options].map(OsString::from).to_vec(),
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
    let (mut measured, mut folder, mut guard) = (None, None, None);
    let is_private = match &kept.place {
        Place::Private => true,
        Place::Host(host) => host.layer().is_some(),
        _ => false,
    };
    let mut layer = None;
    match kept.place {
        Place::Private | Place::Plain(_) => {}
        Place::Temporary(temporary) => {
            if measurable(temporary.descriptor(), &mut kept.report).is_some() {
                measured = Some(duplicate(temporary.descriptor())?);
            }
            let descriptor = duplicate(temporary.descriptor())?;
            folder = Some((Folder { _temporary: Some(temporary), ..Folder::new(descriptor) }, kept.before));
        }
        Place::Host(host) if host.layer().is_some() => {
            if let Some(found) = host.into_layer() {
                if measurable(found.upper(), &mut kept.report).is_some() {
                    measured = Some(duplicate(found.upper())?);
                }
                let admitted = Admitted::of(sandbox);
                layer = Some(LiveLayer::new(found, sandbox.apply, admitted));
            }
        }
        Place::Host(host) => {
            if !host.is_read_only() {
                let before = files::list(host.descriptor());
                folder = Some((Folder::new(duplicate(host.descriptor())?), before));
            }
            guard = Some(host);
        }
    }
    let level = kept.report.effective;
    let beginning = Beginning {
        pid: running.child.pid,
        group: running.group.view(),
        report: kept.report,
        workspace,
        owner: kept.owner,
        folder,
        is_private,
        pipes,
        rules,
    };
    let has_layer = layer.is_some();
    *shared_layer.lock().unwrap_or_else(PoisonError::into_inner) = layer;
    // If nobody waits any more, the flag is set and the loop below ends at once.
    let _ = sender.send(News::Started(Box::new(beginning)));
    let own = kept.limits;
    let wall = total.unwrap_or(Duration::from_secs(u64::from(u32::MAX)));
    let limits = Limits { wall, ..own.clone() };
    let mut on_folder = |descriptor: BorrowedFd<'_>| {
        if !has_layer {
            files::upload(descriptor, &sandbox.files, &own, kept.owner)?;
        }
        let _ = sender.send(News::Folder(duplicate(descriptor)?, files::list(descriptor)));
        Ok(())
    };
    let mut armed = kept.egress;
    let mut on_listener = |listener: OwnedFd| {
        if let Some(armed) = armed.take() {
            let started = armed.start(listener.into(), own.network_bytes);
            let proxy = started.map_err(setup("start egress proxy"))?;
            *way_out.lock().unwrap_or_else(PoisonError::into_inner) = Some(proxy);
        }
        Ok(())
    };
    let finished = supervise(Supervision {
        running: &mut running,
        streams,
        limits: &limits,
        level,
        cancel,
        on_event: &mut |_: Event<'_>| {},
        started: since,
        on_folder: &mut on_folder,
        child_waits: kept.child_waits,
        on_listener: &mut on_listener,
        measured: measured.as_ref().map(|measured| measured.as_fd()),
    });
    let remains = Remains {
        reason: String::new(),
        memory_kills: running.group.memory_kills(),
        refused: running.group.refused_processes(),
        verdict: None,
        status: None,
    };
    drop(running);
    // What is still asked of it is answered by nobody. The last cell has its log by then, or has none.
    let proxy = way_out.lock().unwrap_or_else(PoisonError::into_inner).take();
    drop(proxy);
    drop(guard);
    let Finished { ended, status, .. } =
        finished.map_err(|failure| explain(failure, &names, &kept.program))?;
    let verdict = match ended {
        Some(Ended::Memory) => Some(Verdict::Memory { limit: own.memory }),
        Some(Ended::Processes) => Some(Verdict::Processes { limit: own.processes }),
        Some(Ended::Disk) => Some(Verdict::Disk { limit: own.workspace_bytes }),
        Some(Ended::Inodes) => Some(Verdict::Inodes { limit: own.workspace_inodes }),
        Some(Ended::Denied(call)) => Some(Verdict::Denied { rule: allowlist::rule(call) }),
        None if remains.memory_kills > 0 => Some(Verdict::Memory { limit: own.memory }),
        _ => None,
    };
    let reason = match (&verdict, ended) {
        (Some(Verdict::Memory { limit }), _) => {
            format!("its processes used more than {limit} bytes of memory")
        }
        (Some(Verdict::Processes { limit }), _) => format!("it had more than {limit} processes"),
        (Some(Verdict::Disk { limit }), _) => format!("its workspace held more than {limit} bytes"),
        (Some(Verdict::Inodes { limit }), _) => format!("its workspace held more than {limit} files"),
        (Some(Verdict::Denied { rule }), _) => format!("a process made a refused call: {rule}"),
        (_, Some(Ended::Timeout)) => format!("it lived for the limit `total`, {} s", wall.as_secs()),
        (_, Some(_)) => "it was ended by the host program".into(),
        (_, None) => "its first interpreter died".into(),
    };
    Ok(Remains { reason, verdict, status: status.map(|status| status.wait), ..remains })
}

/// Counts a member of a family as long as it lives.
#[derive(Debug)]
pub(super) struct Seat(Arc<Family>);

impl Seat {
    /// Takes a place if there is one.
    pub(super) fn take(family: &Arc<Family>) -> Result<Self, Error> {
        let most = family.most_members.max(1);
        let taken = family
            .members
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| (count < most).then_some(count + 1));
        if taken.is_ok() {
            return Ok(Self(Arc::clone(family)));
        }
        Err(Error::SessionRejected {
            action: "fork",
            reason: format!("there are already {most} interpreters in its family"),
            hint: "end some of them, or raise the limit `forks`",
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.members.fetch_sub(1, Ordering::SeqCst);
    }
}
