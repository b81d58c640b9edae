//! The process that holds a session, and the sessions that were forked from it.
//!
//! It is this program with a command of its own. The first frame on its standard input says what the session is; the
//! one on its standard output, whether it stands. Then it answers on the session's socket: one connection for each
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
    Cancel, CellLimits, Event, Language, Level, Reset, Session, SessionLimits, Source, Verdict,
};

use super::place;
use super::wire::{Answer, Description, Frame, Request};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::wanted::Wanted;
use crate::{interrupt, launcher};

/// The command of this program that holds a session. It is not for people.
pub(crate) const COMMAND: &str = "hold-session";
/// How long a session stays when nobody uses it, unless `--keep` says otherwise.
const KEEP: Duration = Duration::from_mins(30);
/// How many sessions one holder has at most: forks are of one family, and share its limits.
const MOST: usize = 64;
/// The code of the failure of who comes to a session that has ended.
const SESSION_ENDED: &str = "SESSION_ENDED";
/// How often is looked whether the process shall end, or a cell obeys.
const LOOK: Duration = Duration::from_millis(250);
/// How soon a cell is interrupted again, and how soon one that has not begun.
const AGAIN: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_millis(20);
/// How long answers may take on their way when the process ends.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One session.
struct Member {
    id: String,
    wanted: Wanted,
    session: Session,
    /// What its sandbox was given.
    level: Level,
    /// Ends its cells for good.
    cancel: Cancel,
    /// Whether an earlier cell had arguments.
    has_arguments: AtomicBool,
    socket: PathBuf,
    listener: UnixListener,
}

/// All sessions of this process.
struct Holder {
    folder: PathBuf,
    members: Mutex<HashMap<String, Arc<Member>>>,
    /// How many requests are being worked on, and when the last one ended.
    work: Mutex<(usize, Instant)>,
    changed: Condvar,
}

/// Holds the session that standard input describes, until it ends.
pub(crate) fn hold() -> Result<Exit, Failure> {
    let broken = |error: &io::Error| Failure::of_machine("the request for a session", error);
    let frame = Frame::read(io::stdin().lock()).map_err(|error| broken(&error))?;
    let request = frame.map(|frame| frame.read_message()).transpose().map_err(|error| broken(&error))?;
    let Some(Request::Begin { id, wanted }) = request else {
        return Err(Failure::usage(format!(
            "`{COMMAND}` is how `toolpost exec --session` holds its sessions"
        ))
        .hint("Use `toolpost exec --session ID`."));
    };
    let keep = wanted.keep.unwrap_or(KEEP);
    let (answer, holder) = match Holder::begin(&id, *wanted) {
        Ok(holder) => (Answer::Done, Some(holder)),
        Err(failure) => (Answer::Failed(failure.into()), None),
    };
    let told = Frame::message(&answer).and_then(|frame| frame.write(io::stdout().lock()));
    // Who wanted it has gone: nobody knows of it.
    if let (Ok(()), Some(holder)) = (told, holder) {
        holder.wait(keep)?;
    }
    Ok(Exit::Ok)
}

impl Holder {
    fn begin(id: &str, wanted: Wanted) -> Result<Arc<Self>, Failure> {
        let folder = place::folder()?;
        let language = wanted.lang.unwrap_or(Language::Python);
        let sandbox = wanted.sandbox(launcher::search_path().unwrap_or_default(), None)?;
        let limits = SessionLimits::default().with_idle(Some(wanted.keep.unwrap_or(KEEP)));
        let session = Session::start_with(&sandbox, language, &limits)?;
        let holder = Arc::new(Self {
            folder,
            members: Mutex::default(),
            work: Mutex::new((0, Instant::now())),
            changed: Condvar::new(),
        });
        holder.add(id, wanted, session)?;
        Ok(holder)
    }

    /// Gives a session its name and its socket.
    fn add(self: &Arc<Self>, id: &str, wanted: Wanted, session: Session) -> Result<(), Failure> {
        let socket = place::socket(&self.folder, id)?;
        let wrong = |error: &io::Error| Failure::file("the socket of the session", &socket, error);
        if UnixStream::connect(&socket).is_ok() {
            return Err(Failure::new(Exit::Failed, "CONFLICT", format!("there is a session `{id}` already"))
                .hint(format!("Name another one, or end it: `toolpost exec --session {id} --end`.")));
        }
        // One that nobody listens on was left by a holder that was killed.
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).map_err(|error| wrong(&error))?;
        let member = Arc::new(Member {
            id: id.to_owned(),
            wanted,
            level: session.report()?.effective,
            session,
            cancel: Cancel::new(),
            // A fork has those of its parent.
            has_arguments: AtomicBool::new(!lock(&self.members).is_empty()),
            socket: socket.clone(),
            listener: listener.try_clone().map_err(|error| wrong(&error))?,
        });
        let (holder, accepting) = (Arc::clone(self), Arc::clone(&member));
        let accept = move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let (holder, member) = (Arc::clone(&holder), Arc::clone(&accepting));
                // Without a thread the connection ends, which the command says.
                let _ = std::thread::Builder::new().spawn(move || holder.serve(&member, &stream));
            }
        };
        std::thread::Builder::new().spawn(accept).map_err(|error| wrong(&error))?;
        lock(&self.members).insert(id.to_owned(), member);
        Ok(())
    }

    /// Waits until there is no session any more, until nobody has used one for a while, or for a signal.
    fn wait(&self, keep: Duration) -> Result<(), Failure> {
        let runtime = crate::commands::runtime()?;
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
            // A signal has no other way to this thread.
            let next = keep.saturating_sub(idle).clamp(Duration::from_millis(1), LOOK);
            drop(self.changed.wait_timeout(work, next));
        }
        let members: Vec<Arc<Member>> = lock(&self.members).drain().map(|(_, member)| member).collect();
        for member in &members {
            member.end();
        }
        // Answers that are on their way get there; what is in the sandbox dies with this process.
        let begun = Instant::now();
        while lock(&self.work).0 > 0 && begun.elapsed() < LAST_ANSWERS {
            std::thread::sleep(Duration::from_millis(5));
        }
        // This process ends without dropping what threads hold, and would leave control groups behind.
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
        let is_use = !matches!(request, Ok(None | Some(Request::Describe)));
        let answer = match request {
            // Somebody looked whether the session is there.
            Ok(None) => None,
            Ok(Some(request)) => Some(self.answer(member, request, stream).inspect_err(|failure| {
                // It has nothing more to give, and the next command of this name shall begin anew.
                if failure.code == SESSION_ENDED {
                    lock(&self.members).remove(&member.id);
                    member.end();
                }
            })),
            Err(error) => Some(Err(Failure::of_machine("the request", &error))),
        };
        if let Some(answer) = answer {
            let answer = answer.unwrap_or_else(|failure| Answer::Failed(failure.into()));
            // Who asked may have gone.
            let _ = Frame::message(&answer).and_then(|frame| frame.write(stream));
        }
        let mut work = lock(&self.work);
        // Who only looks at a session does not use it.
        *work = (work.0 - 1, if is_use { Instant::now() } else { work.1 });
        drop(work);
        self.changed.notify_all();
    }

    fn describe(&self, member: &Member) -> Description {
        let (at_work, since) = *lock(&self.work);
        let idle = since.elapsed();
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let keep = member.wanted.keep.unwrap_or(KEEP);
        Description {
            id: member.id.clone(),
            language: member.session.language(),
            level: member.level,
            idle_ms: milliseconds(idle),
            // This request is at work too.
            ends_after_ms: (at_work <= 1).then(|| milliseconds(keep.saturating_sub(idle))),
        }
    }

    fn answer(
        self: &Arc<Self>,
        member: &Arc<Member>,
        request: Request,
        stream: &UnixStream,
    ) -> Result<Answer, Failure> {
        match request {
            Request::Begin { .. } => return Err(Failure::usage("the session has begun")),
            Request::Describe => return Ok(Answer::Described(self.describe(member))),
            Request::Interrupt => {
                member.session.interrupt();
            }
            Request::Reset => member.session.reset(Reset::KeepFiles)?,
            Request::End => {
                lock(&self.members).remove(&member.id);
                member.end();
                // The command returns when everything of the session is gone.
                member.session.end();
            }
            Request::Fork { id } => {
                if lock(&self.members).len() >= MOST {
                    return Err(Failure::new(
                        Exit::Limit,
                        "LIMIT",
                        format!("a session and its forks are at most {MOST}"),
                    )
                    .hint("End some of them: `toolpost exec --session ID --end`."));
                }
                for fork in member.session.fork(1)? {
                    self.add(&id, member.wanted.clone(), fork)?;
                }
            }
            Request::Run { wanted, code, arguments, timeout, attach, artifacts } => {
                member.wanted.check_same(&wanted, &member.id)?;
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

/// The code that sets the arguments, if the language has some in a session.
fn arguments_cell(language: Language, arguments: &[String]) -> Option<String> {
    // A JSON array of strings is one of Python and of JavaScript too.
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
    /// Ends its cell and its socket.
    fn end(&self) {
        self.cancel.cancel();
        // Who asks for it from now on begins a new one.
        let _ = std::fs::remove_file(&self.socket);
        // Wakes the thread that accepts, which then ends: a listening socket is shut as any other.
        if let Ok(listener) = self.listener.try_clone() {
            let _ = UnixStream::from(OwnedFd::from(listener)).shutdown(Shutdown::Both);
        }
    }

    /// Sets the arguments of the next cell, by a cell of its own: lines in tracebacks stay those of the code.
    fn set_arguments(&self, arguments: &[String]) -> Result<(), Failure> {
        if !self.has_arguments.swap(!arguments.is_empty(), Ordering::SeqCst) && arguments.is_empty() {
            return Ok(());
        }
        let language = self.session.language();
        let code = arguments_cell(language, arguments).ok_or_else(|| {
            Failure::usage(format!("code in {language} takes no arguments in a session"))
                .hint("Run it without `--session`.")
        })?;
        let limits = CellLimits::from(&self.wanted.limits(None));
        let outcome = self.session.run(&code, &limits, &self.cancel, &mut |_| {})?;
        if outcome.verdict == Verdict::Ok {
            return Ok(());
        }
        Err(Failure::new(Exit::Failed, "SANDBOX", "the session did not take the arguments")
            .hint("End the session with `--end` and begin a new one."))
    }

    /// Runs a cell for a command, and interrupts it when the command goes away.
    fn run(
        self: &Arc<Self>,
        code: &str,
        timeout: Option<Duration>,
        artifacts: Option<&Path>,
        stream: &UnixStream,
    ) -> Result<Answer, Failure> {
        let limits = self.wanted.limits(timeout);
        let limits = CellLimits::from(&limits);
        let is_running = Arc::new(AtomicBool::new(true));
        let watch = {
            let broken = |error: io::Error| Failure::of_machine("the connection to the command", &error);
            let (member, is_running) = (Arc::clone(self), Arc::clone(&is_running));
            let stream = stream.try_clone().map_err(broken)?;
            move || {
                // The command says nothing more: this ends when it does, or when the cell has ended.
                let _ = Frame::read(&stream);
                while is_running.load(Ordering::SeqCst) {
                    // One interrupt is enough for a cell that obeys, and may disturb one that is about to end.
                    let pause = if member.session.interrupt() { AGAIN } else { SOON };
                    std::thread::sleep(pause);
                }
            }
        };
        let watching = std::thread::Builder::new().spawn(watch);
        watching.map_err(|error| Failure::of_machine("a thread", &error))?;
        let outcome = self.session.run(code, &limits, &self.cancel, &mut |event| {
            let frame = match event {
                Event::Stdout(bytes) => Frame::Stdout(bytes.to_vec()),
                Event::Stderr(bytes) => Frame::Stderr(bytes.to_vec()),
                _ => return,
            };
            // That it has gone, the other thread sees.
            let _ = frame.write(stream);
        });
        is_running.store(false, Ordering::SeqCst);
        let _ = stream.shutdown(Shutdown::Read);
        let mut outcome = outcome?;
        let (files, trouble) = match artifacts {
            None => (Vec::new(), None),
            Some(directory) => crate::workspace::export(&mut outcome, directory),
        };
        Ok(Answer::Ended {
            outcome: serde_json::to_value(&outcome)
                .map_err(|error| Failure::of_machine("the outcome", &error.into()))?,
            files: files.iter().map(|path| Some(path.as_ref()?.display().to_string())).collect(),
            trouble: trouble.map(Into::into),
        })
    }
}
