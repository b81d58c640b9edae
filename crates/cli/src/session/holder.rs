//! The process that holds a session and its forks.
//!
//! It is this program with a hidden command. The first frame on standard input describes the session, and the
//! one on standard output reports readiness. Then it answers on the session's socket, one connection per
//! request, so that a cell can be interrupted while it runs.

use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use toolpost_sandbox::{
    Cancel, CellLimits, Language, Level, Reset, SandboxEvent, Session, SessionLimits, Source, Verdict,
};

use super::sockets;
use super::wire::{Answer, Description, Frame, SessionRequest};
use crate::args::HOLD_SESSION;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::sandbox_options::SandboxOptions;
use crate::{env, interrupt, launcher, print};

/// The idle time after which a session ends, without `--keep`.
const DEFAULT_IDLE: Duration = Duration::from_mins(30);
/// The maximum number of sessions of a holder; forks share its limits.
const MAX_SESSIONS: usize = 64;
/// The error code of requests to an ended session.
const SESSION_ENDED: &str = "SESSION_ENDED";
/// The interval between checks for the end of the process and of a cell.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The wait before a cell is interrupted again, and before its first interrupt.
const AGAIN: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_millis(20);
/// The time that answers have when the process ends.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One session.
struct Member {
    id: String,
    options: SandboxOptions,
    session: Session,
    /// The options of its sandbox.
    level: Level,
    /// The cancellation of its cells.
    cancel: Cancel,
    /// Whether an earlier cell had arguments.
    has_arguments: AtomicBool,
    socket: PathBuf,
    listener: UnixListener,
}

/// All sessions of this process.
struct Holder {
    directory: PathBuf,
    members: Mutex<HashMap<String, Arc<Member>>>,
    /// The number of active requests, and the end of the last one.
    work: Mutex<(usize, Instant)>,
    changed: Condvar,
}

/// Holds the session of standard input until it ends.
pub(crate) fn hold() -> Result<Exit, Failure> {
    let broken = |error: &io::Error| Failure::of_machine("the request for a session", error);
    let frame = Frame::read(io::stdin().lock()).map_err(|error| broken(&error))?;
    let request = frame.map(|frame| frame.read_message()).transpose().map_err(|error| broken(&error))?;
    let Some(SessionRequest::Begin { id, options }) = request else {
        return Err(Failure::usage(format!(
            "`{HOLD_SESSION}` is the internal command of `toolpost exec --session`"
        ))
        .hint("Use `toolpost exec --session ID`."));
    };
    let keep = options.keep.unwrap_or(DEFAULT_IDLE);
    let (answer, holder) = match Holder::begin(&id, *options) {
        Ok(holder) => (Answer::Done, Some(holder)),
        Err(failure) => (Answer::Failed(failure.into()), None),
    };
    let mut bytes = Vec::new();
    let written = Frame::message(&answer).and_then(|frame| frame.write(&mut bytes));
    let is_sent = written.is_ok() && print::raw(&bytes, false).is_ok();
    // The caller is gone: the session has no user.
    if let (true, Some(holder)) = (is_sent, holder) {
        holder.wait(keep)?;
    }
    Ok(Exit::Ok)
}

impl Holder {
    fn begin(id: &str, options: SandboxOptions) -> Result<Arc<Self>, Failure> {
        let directory = sockets::directory()?;
        let language = options.lang.unwrap_or(Language::Python);
        let sandbox = options.sandbox(launcher::search_path().unwrap_or_default(), None)?;
        let limits = SessionLimits::default().with_idle(Some(options.keep.unwrap_or(DEFAULT_IDLE)));
        let session = Session::start_with(&sandbox, language, &limits)?;
        let holder = Arc::new(Self {
            directory,
            members: Mutex::default(),
            work: Mutex::new((0, Instant::now())),
            changed: Condvar::new(),
        });
        holder.add(id, options, session)?;
        Ok(holder)
    }

    /// Adds a session with its socket.
    fn add(self: &Arc<Self>, id: &str, options: SandboxOptions, session: Session) -> Result<(), Failure> {
        let socket = sockets::socket(&self.directory, id)?;
        let wrong = |error: &io::Error| Failure::file("the socket of the session", &socket, error);
        if UnixStream::connect(&socket).is_ok() {
            return Err(Failure::new(Exit::Failed, "CONFLICT", format!("the session `{id}` already exists"))
                .hint(format!("Choose another name, or end it: `toolpost exec --session {id} --end`.")));
        }
        // A socket without a listener is of a killed holder.
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).map_err(|error| wrong(&error))?;
        let member = Arc::new(Member {
            id: id.to_owned(),
            options,
            level: session.report()?.effective,
            session,
            cancel: Cancel::new(),
            // A fork has its parent's options.
            has_arguments: AtomicBool::new(!lock(&self.members).is_empty()),
            socket: socket.clone(),
            listener: listener.try_clone().map_err(|error| wrong(&error))?,
        });
        let (holder, accepting) = (Arc::clone(self), Arc::clone(&member));
        let accept = move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let (holder, member) = (Arc::clone(&holder), Arc::clone(&accepting));
                // Without a thread the connection ends, which the client reports.
                let _ = std::thread::Builder::new().spawn(move || holder.serve(&member, &stream));
            }
        };
        std::thread::Builder::new().spawn(accept).map_err(|error| wrong(&error))?;
        lock(&self.members).insert(id.to_owned(), member);
        Ok(())
    }

    /// Waits for the end of all sessions, the idle limit, or a signal.
    fn wait(&self, keep: Duration) -> Result<(), Failure> {
        let runtime = crate::runtime::start()?;
        let signal = {
            let _entered = runtime.enter();
            interrupt::watch()?
        };
        loop {
            let work = lock(&self.work);
            let (at_work, since) = *work;
            let idle = since.elapsed();
            if lock(&self.members).is_empty() || (at_work == 0 && idle >= keep) || signal.is_cancelled() {
                break;
            }
            // Signals only set a flag for this thread.
            let next = keep.saturating_sub(idle).clamp(Duration::from_millis(1), POLL_INTERVAL);
            drop(self.changed.wait_timeout(work, next));
        }
        let members: Vec<Arc<Member>> = lock(&self.members).drain().map(|(_, member)| member).collect();
        for member in &members {
            member.end();
        }
        // Pending answers are sent; the sandbox dies with this process.
        let begun = Instant::now();
        while lock(&self.work).0 > 0 && begun.elapsed() < LAST_ANSWERS {
            std::thread::sleep(Duration::from_millis(5));
        }
        // The process ends without drops of its threads, which would leave control groups.
        for member in &members {
            member.session.end();
        }
        runtime.shutdown_background();
        Ok(())
    }

    /// Answers one connection.
    fn serve(self: &Arc<Self>, member: &Arc<Member>, stream: &UnixStream) {
        lock(&self.work).0 += 1;
        let request =
            Frame::read(stream).and_then(|frame| frame.map(|frame| frame.read_message()).transpose());
        let is_use = !matches!(request, Ok(None | Some(SessionRequest::Describe)));
        let answer = match request {
            // A probe of a live session.
            Ok(None) => None,
            Ok(Some(request)) => Some(self.answer(member, request, stream).inspect_err(|failure| {
                // An ended interpreter ends the session, so that the next command starts a new one.
                if failure.code == SESSION_ENDED {
                    lock(&self.members).remove(&member.id);
                    member.end();
                }
            })),
            Err(error) => Some(Err(Failure::of_machine("the request", &error))),
        };
        if let Some(answer) = answer {
            let answer = answer.unwrap_or_else(|failure| Answer::Failed(failure.into()));
            // The client may be gone.
            let _ = Frame::message(&answer).and_then(|frame| frame.write(stream));
        }
        let mut work = lock(&self.work);
        // A description does not count as use.
        *work = (work.0 - 1, if is_use { Instant::now() } else { work.1 });
        drop(work);
        self.changed.notify_all();
    }

    fn describe(&self, member: &Member) -> Description {
        let (at_work, since) = *lock(&self.work);
        let idle = since.elapsed();
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let keep = member.options.keep.unwrap_or(DEFAULT_IDLE);
        Description {
            id: member.id.clone(),
            language: member.session.language(),
            level: member.level,
            idle_ms: milliseconds(idle),
            // This request counts too.
            ends_after_ms: (at_work <= 1).then(|| milliseconds(keep.saturating_sub(idle))),
        }
    }

    fn answer(
        self: &Arc<Self>,
        member: &Arc<Member>,
        request: SessionRequest,
        stream: &UnixStream,
    ) -> Result<Answer, Failure> {
        match request {
            SessionRequest::Begin { .. } => return Err(Failure::usage("the session already started")),
            SessionRequest::Describe => return Ok(Answer::Described(self.describe(member))),
            SessionRequest::Interrupt => {
                member.session.interrupt();
            }
            SessionRequest::Reset => member.session.reset(Reset::KeepFiles)?,
            SessionRequest::End => {
                lock(&self.members).remove(&member.id);
                member.end();
                // The client returns when the whole session is gone.
                member.session.end();
            }
            SessionRequest::Fork { id } => {
                if lock(&self.members).len() >= MAX_SESSIONS {
                    return Err(Failure::new(
                        Exit::Limit,
                        "LIMIT",
                        format!("a holder has at most {MAX_SESSIONS} sessions"),
                    )
                    .hint("End one of them: `toolpost exec --session ID --end`."));
                }
                for fork in member.session.fork(1)? {
                    self.add(&id, member.options.clone(), fork)?;
                }
            }
            SessionRequest::Run { options, code, arguments, timeout, attach, artifacts } => {
                member.options.check_same(&options, &member.id)?;
                for (name, path) in attach {
                    member.session.upload(&name, &Source::Path(path))?;
                }
                member.set_arguments(&arguments)?;
                return member.run(&code, timeout, artifacts.as_deref(), stream);
            }
        }
        Ok(Answer::Done)
    }
}

/// The code that sets the arguments, for languages with arguments in sessions.
fn arguments_cell(language: Language, arguments: &[String]) -> Option<String> {
    // A JSON array of strings is valid Python and JavaScript.
    let words = serde_json::to_string(arguments).ok()?;
    Some(match language {
        Language::Python => format!("__import__('sys').argv[1:] = {words}"),
        Language::JavaScript => {
            format!("void process.argv.splice(1, process.argv.length, 'main.js', ...{words})")
        }
        _ => return None,
    })
}

impl Member {
    /// Cancels the cell and removes the socket.
    fn end(&self) {
        self.cancel.cancel();
        // New requests start a new session.
        let _ = std::fs::remove_file(&self.socket);
        // Wakes the accepting thread, which then ends.
        if let Ok(listener) = self.listener.try_clone() {
            let _ = UnixStream::from(OwnedFd::from(listener)).shutdown(Shutdown::Both);
        }
    }

    /// Sets the arguments of the next cell in a cell of its own, so that line numbers of the code stay.
    fn set_arguments(&self, arguments: &[String]) -> Result<(), Failure> {
        if !self.has_arguments.swap(!arguments.is_empty(), Ordering::SeqCst) && arguments.is_empty() {
            return Ok(());
        }
        let language = self.session.language();
        let code = arguments_cell(language, arguments).ok_or_else(|| {
            Failure::usage(format!("code in {language} takes no arguments in a session"))
                .hint("Run it without `--session`.")
        })?;
        let limits = CellLimits::from(&self.options.limits(None));
        let outcome = self.session.run(&code, &limits, &self.cancel, &mut |_| {})?;
        if outcome.verdict == Verdict::Ok {
            return Ok(());
        }
        Err(Failure::new(Exit::Failed, "SANDBOX", "the session rejected the arguments")
            .hint("End the session with `--end` and start a new one."))
    }

    /// Runs a cell and interrupts it when its client disconnects.
    fn run(
        self: &Arc<Self>,
        code: &str,
        timeout: Option<Duration>,
        artifacts: Option<&Path>,
        stream: &UnixStream,
    ) -> Result<Answer, Failure> {
        let limits = self.options.limits(timeout);
        let limits = CellLimits::from(&limits);
        let is_running = Arc::new(AtomicBool::new(true));
        let watch = {
            let broken = |error: io::Error| Failure::of_machine("the connection to the command", &error);
            let (member, is_running) = (Arc::clone(self), Arc::clone(&is_running));
            let stream = stream.try_clone().map_err(broken)?;
            move || {
                // The client sends nothing more: this read ends with the client or the cell.
                let _ = Frame::read(&stream);
                while is_running.load(Ordering::SeqCst) {
                    // One interrupt is enough for a cell that obeys; more could hit the next one.
                    let pause = if member.session.interrupt() { AGAIN } else { SOON };
                    std::thread::sleep(pause);
                }
            }
        };
        let watching = std::thread::Builder::new().spawn(watch);
        watching.map_err(|error| Failure::of_machine("a thread", &error))?;
        // The client may not know the secrets of the session.
        let (mut stdout, mut stderr) = (env::scrubber().stream(), env::scrubber().stream());
        let outcome = self.session.run(code, &limits, &self.cancel, &mut |event| {
            let frame = match event {
                SandboxEvent::Stdout(bytes) => Frame::Stdout(stdout.push_bytes(bytes)),
                SandboxEvent::Stderr(bytes) => Frame::Stderr(stderr.push_bytes(bytes)),
                _ => return,
            };
            // The other thread notices a lost client.
            let _ = frame.write(stream);
        });
        is_running.store(false, Ordering::SeqCst);
        for (rest, frame) in
            [(stdout.finish(), Frame::Stdout as fn(Vec<u8>) -> Frame), (stderr.finish(), Frame::Stderr)]
        {
            if !rest.is_empty() {
                let _ = frame(rest.into_bytes()).write(stream);
            }
        }
        let _ = stream.shutdown(Shutdown::Read);
        let mut outcome = outcome?;
        let (files, trouble) = match artifacts {
            None => (Vec::new(), None),
            Some(directory) => crate::workspace::export(&mut outcome, directory),
        };
        let wrong = |error: serde_json::Error| Failure::of_machine("the outcome", &error.into());
        let outcome = env::scrubber().scrub_json(&serde_json::to_string(&outcome).map_err(wrong)?);
        Ok(Answer::Ended {
            outcome: serde_json::from_str(&outcome).map_err(wrong)?,
            files: files.iter().map(|path| Some(path.as_ref()?.display().to_string())).collect(),
            trouble: trouble.map(Into::into),
        })
    }
}
