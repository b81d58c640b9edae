//! The client of a session's holder.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use toolpost_sandbox::start_detached;

use super::sockets;
use super::wire::{Answer, Description, Frame, SessionRequest};
use crate::args::HOLD_SESSION;
use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::sandbox_options::SandboxOptions;

/// The variables of a holder: search path, state directories, network.
const PASSED_ON: [&str; 7] =
    ["PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME", "TOOLPOST_NO_NETWORK"];

/// A connection to a session.
#[derive(Debug)]
pub(crate) struct Connection(UnixStream);

fn wrong(error: &io::Error) -> Failure {
    Failure::new(Exit::Unreachable, "DEPENDENCY", format!("the session's holder does not answer: {error}"))
        .hint("It may have been killed. The next command with this name starts a new session.")
}

impl Connection {
    /// Sends a request.
    pub(crate) fn ask(&self, request: &SessionRequest) -> Result<(), Failure> {
        let frame = Frame::message(request).map_err(|error| wrong(&error))?;
        frame.write(&self.0).map_err(|error| wrong(&error))
    }

    /// Receives the answer; output before it goes to `on_output`, with true for standard error.
    pub(crate) fn answer(&self, on_output: &mut dyn FnMut(Frame)) -> Result<Answer, Failure> {
        loop {
            match Frame::read(&self.0).map_err(|error| wrong(&error))? {
                None => return Err(wrong(&ErrorKind::UnexpectedEof.into())),
                Some(message @ Frame::Message(_)) => {
                    return match message.read_message().map_err(|error| wrong(&error))? {
                        Answer::Failed(failure) => Err(failure.into()),
                        answer => Ok(answer),
                    };
                }
                Some(output) => on_output(output),
            }
        }
    }

    /// Sends a request without output, and waits for the answer.
    pub(crate) fn demand(&self, request: &SessionRequest) -> Result<(), Failure> {
        self.ask(request)?;
        self.answer(&mut |_| {}).map(drop)
    }
}

/// The time limit of a holder's description of its session.
const DESCRIPTION: Duration = Duration::from_secs(2);

impl Connection {
    /// The description of the session.
    pub(crate) fn describe(&self) -> Result<Description, Failure> {
        self.0.set_read_timeout(Some(DESCRIPTION)).map_err(|error| wrong(&error))?;
        self.ask(&SessionRequest::Describe)?;
        match self.answer(&mut |_| {})? {
            Answer::Described(description) => Ok(description),
            _ => Err(wrong(&ErrorKind::InvalidData.into())),
        }
    }
}

/// The live sessions by name, except those whose holder does not answer.
pub(crate) fn list() -> Result<Vec<Description>, Failure> {
    let directory = sockets::directory()?;
    let entries =
        directory.read_dir().map_err(|error| Failure::file("the sessions' directory", &directory, &error))?;
    let sockets = entries.flatten().map(|entry| entry.path());
    let mut all: Vec<Description> = sockets
        .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .filter_map(|path| connect(&path).ok().flatten()?.describe().ok())
        .collect();
    all.sort_by(|left, right| left.id.cmp(&right.id));
    Ok(all)
}

/// The session of a name, if it is live.
pub(crate) fn find(id: &str) -> Result<Option<Connection>, Failure> {
    connect(&sockets::socket(&sockets::directory()?, id)?)
}

fn connect(socket: &Path) -> Result<Option<Connection>, Failure> {
    match UnixStream::connect(socket) {
        Ok(stream) => Ok(Some(Connection(stream))),
        // A killed holder leaves its socket.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => Err(wrong(&error)),
    }
}

/// The session of a name, started if needed; true if it is new.
pub(crate) fn begin(id: &str, options: &SandboxOptions) -> Result<(Connection, bool), Failure> {
    let directory = sockets::directory()?;
    let socket = sockets::socket(&directory, id)?;
    // Two commands that start one session share it.
    let _lock = sockets::lock(&directory)?;
    if let Some(connection) = connect(&socket)? {
        return Ok((connection, false));
    }
    start(id, options)?;
    let connection = connect(&socket)?.ok_or_else(|| wrong(&ErrorKind::ConnectionRefused.into()))?;
    Ok((connection, true))
}

/// Starts a holder and waits until it is ready or fails.
fn start(id: &str, options: &SandboxOptions) -> Result<(), Failure> {
    let program = std::env::current_exe().map_err(|error| Failure::of_machine("this program", &error))?;
    let environment: Vec<(OsString, OsString)> =
        PASSED_ON.into_iter().filter_map(|name| Some((name.into(), env::get_os(name)?))).collect();
    let started = start_detached(&program, &[HOLD_SESSION.into()], &environment)?;
    let begin = SessionRequest::Begin { id: id.to_owned(), options: Box::new(options.clone()) };
    let sent = Frame::message(&begin).and_then(|frame| frame.write(&started.stdin));
    drop(started.stdin);
    sent.map_err(|error| wrong(&error))?;
    let frame = Frame::read(&started.stdout).map_err(|error| wrong(&error))?;
    let frame = frame.ok_or_else(|| wrong(&ErrorKind::UnexpectedEof.into()))?;
    match frame.read_message().map_err(|error| wrong(&error))? {
        Answer::Failed(failure) => Err(failure.into()),
        _ => Ok(()),
    }
}
