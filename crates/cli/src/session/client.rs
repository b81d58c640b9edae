//! The side of the command.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use toolpost_sandbox::start_detached;

use super::wire::{Answer, Description, Frame, Request};
use super::{holder, place};
use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::wanted::Wanted;

/// The variables that a holder gets: where programs are, and where it keeps what it keeps.
const PASSED_ON: [&str; 7] =
    ["PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME", "TOOLPOST_NO_NETWORK"];

/// A way to a session.
#[derive(Debug)]
pub(crate) struct Connection(UnixStream);

fn wrong(error: &io::Error) -> Failure {
    Failure::new(
        Exit::Unreachable,
        "DEPENDENCY",
        format!("the holder of the session does not answer: {error}"),
    )
    .hint("It may have been killed. The next command with this name begins a new session.")
}

impl Connection {
    /// Asks for something.
    pub(crate) fn ask(&self, request: &Request) -> Result<(), Failure> {
        let frame = Frame::message(request).map_err(|error| wrong(&error))?;
        frame.write(&self.0).map_err(|error| wrong(&error))
    }

    /// The answer; what is printed before it goes to `on_output`, with whether it is standard error.
    pub(crate) fn answer(&self, on_output: &mut dyn FnMut(Frame)) -> Result<Answer, Failure> {
        loop {
            match Frame::read(&self.0).map_err(|error| wrong(&error))? {
                None => return Err(wrong(&ErrorKind::UnexpectedEof.into())),
                Some(message @ Frame::Message(_)) => {
                    return match message.read_message().map_err(|error| wrong(&error))? {
                        Answer::Failed(told) => Err(told.into()),
                        answer => Ok(answer),
                    };
                }
                Some(output) => on_output(output),
            }
        }
    }

    /// Asks for something that prints nothing, and waits until it is done.
    pub(crate) fn demand(&self, request: &Request) -> Result<(), Failure> {
        self.ask(request)?;
        self.answer(&mut |_| {}).map(drop)
    }
}

/// The longest time that a holder may take to say what its session is.
const DESCRIPTION: Duration = Duration::from_secs(2);

impl Connection {
    /// What the session is.
    pub(crate) fn describe(&self) -> Result<Description, Failure> {
        self.0.set_read_timeout(Some(DESCRIPTION)).map_err(|error| wrong(&error))?;
        self.ask(&Request::Describe)?;
        match self.answer(&mut |_| {})? {
            Answer::Described(description) => Ok(description),
            _ => Err(wrong(&ErrorKind::InvalidData.into())),
        }
    }
}

/// The sessions that there are, by name. One whose holder does not answer is left out.
pub(crate) fn list() -> Result<Vec<Description>, Failure> {
    let folder = place::folder()?;
    let entries =
        folder.read_dir().map_err(|error| Failure::file("the folder of the sessions", &folder, &error))?;
    let sockets = entries.flatten().map(|entry| entry.path());
    let mut all: Vec<Description> = sockets
        .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .filter_map(|path| connect(&path).ok().flatten()?.describe().ok())
        .collect();
    all.sort_by(|left, right| left.id.cmp(&right.id));
    Ok(all)
}

/// The session of a name, if there is one.
pub(crate) fn find(id: &str) -> Result<Option<Connection>, Failure> {
    connect(&place::socket(&place::folder()?, id)?)
}

fn connect(socket: &Path) -> Result<Option<Connection>, Failure> {
    match UnixStream::connect(socket) {
        Ok(stream) => Ok(Some(Connection(stream))),
        // A holder that was killed leaves its socket.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => Err(wrong(&error)),
    }
}

/// The session of a name, begun if there is none. Also says whether it is new.
pub(crate) fn begin(id: &str, wanted: &Wanted) -> Result<(Connection, bool), Failure> {
    let folder = place::folder()?;
    let socket = place::socket(&folder, id)?;
    // Two commands that begin the same session at once get one.
    let _lock = place::lock(&folder)?;
    if let Some(connection) = connect(&socket)? {
        return Ok((connection, false));
    }
    start(id, wanted)?;
    let connection = connect(&socket)?.ok_or_else(|| wrong(&ErrorKind::ConnectionRefused.into()))?;
    Ok((connection, true))
}

/// Starts a holder, and waits until it holds the session or says why it cannot.
fn start(id: &str, wanted: &Wanted) -> Result<(), Failure> {
    let program = std::env::current_exe().map_err(|error| Failure::of_machine("this program", &error))?;
    let environment: Vec<(OsString, OsString)> =
        PASSED_ON.into_iter().filter_map(|name| Some((name.into(), env::get_os(name)?))).collect();
    let started = start_detached(&program, &[holder::COMMAND.into()], &environment)?;
    let begin = Request::Begin { id: id.to_owned(), wanted: Box::new(wanted.clone()) };
    let sent = Frame::message(&begin).and_then(|frame| frame.write(&started.stdin));
    drop(started.stdin);
    sent.map_err(|error| wrong(&error))?;
    let frame = Frame::read(&started.stdout).map_err(|error| wrong(&error))?;
    let frame = frame.ok_or_else(|| wrong(&ErrorKind::UnexpectedEof.into()))?;
    match frame.read_message().map_err(|error| wrong(&error))? {
        Answer::Failed(told) => Err(told.into()),
        _ => Ok(()),
    }
}
