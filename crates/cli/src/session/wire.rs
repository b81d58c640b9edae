//! What a command and the holder of a session say to each other: frames of a kind, a length and a body.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_sandbox::{Language, Level};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::wanted::Wanted;

/// The longest body, in bytes: code, an outcome with its output, or a piece of output.
const MAX_BODY: u32 = 64 << 20;

/// What a command asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Begin: the first frame that a new holder gets, and only it.
    Begin {
        /// The name of the session.
        id: String,
        /// What it is to be.
        wanted: Box<Wanted>,
    },
    /// Run a cell.
    Run {
        /// What the session must be; what is not said may be anything.
        wanted: Box<Wanted>,
        /// The code.
        code: String,
        /// Its arguments.
        arguments: Vec<String>,
        /// How long it may take; the session's own limit if nothing is said.
        timeout: Option<Duration>,
        /// Files that are put into the workspace first, by name.
        attach: Vec<(String, PathBuf)>,
        /// Where files that it makes are put.
        artifacts: Option<PathBuf>,
    },
    /// Say what the session is.
    Describe,
    /// A fresh interpreter; the files stay.
    Reset,
    /// End the cell that runs, as Ctrl-C does.
    Interrupt,
    /// A second session that is what this one is now.
    Fork {
        /// The name of the new one.
        id: String,
    },
    /// End the session.
    End,
}

/// A session, as it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Description {
    /// Its name.
    pub(crate) id: String,
    /// What its interpreter runs.
    pub(crate) language: Language,
    /// The level of the sandbox that it was given.
    pub(crate) level: Level,
    /// How long it has been idle.
    pub(crate) idle_ms: u64,
    /// In what time it ends while idle; none while code runs in it or a fork.
    pub(crate) ends_after_ms: Option<u64>,
}

/// What the holder answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// It is done.
    Done,
    /// What the session is.
    Described(Description),
    /// A cell has ended.
    Ended {
        /// The outcome.
        outcome: Value,
        /// Where each of its files was put; none for a rejected one.
        files: Vec<Option<String>>,
        /// Why they were not.
        trouble: Option<Told>,
    },
    /// It cannot be done.
    Failed(Told),
}

/// A failure on its way to the command that tells it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    exit: u8,
    code: String,
    message: String,
    causes: Vec<String>,
    hints: Vec<String>,
}

impl From<Failure> for Told {
    fn from(failure: Failure) -> Self {
        let Failure { exit, code, message, causes, hints } = failure;
        Self { exit: exit.number(), code, message, causes, hints }
    }
}

impl From<Told> for Failure {
    fn from(told: Told) -> Self {
        let exit = Exit::of_number(told.exit).unwrap_or(Exit::Failed);
        Self { exit, code: told.code, message: told.message, causes: told.causes, hints: told.hints }
    }
}

/// One frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A piece of standard output.
    Stdout(Vec<u8>),
    /// A piece of standard error.
    Stderr(Vec<u8>),
    /// A request or an answer, as JSON.
    Message(Vec<u8>),
}

impl Frame {
    /// The frame of a request or an answer.
    pub(crate) fn message(value: &impl Serialize) -> io::Result<Self> {
        Ok(Self::Message(serde_json::to_vec(value)?))
    }

    /// What a message says.
    pub(crate) fn read_message<T: DeserializeOwned>(&self) -> io::Result<T> {
        match self {
            Self::Message(bytes) => Ok(serde_json::from_slice(bytes)?),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "expected a message, found output")),
        }
    }

    pub(crate) fn write(&self, mut target: impl Write) -> io::Result<()> {
        let (kind, body) = match self {
            Self::Stdout(body) => (b'o', body),
            Self::Stderr(body) => (b'e', body),
            Self::Message(body) => (b'm', body),
        };
        let length = u32::try_from(body.len()).ok().filter(|length| *length <= MAX_BODY);
        let length =
            length.ok_or_else(|| io::Error::new(io::ErrorKind::FileTooLarge, "more than 64 MiB at once"))?;
        let mut bytes = Vec::with_capacity(body.len() + 5);
        bytes.push(kind);
        bytes.extend(length.to_be_bytes());
        bytes.extend(body);
        target.write_all(&bytes)?;
        target.flush()
    }

    /// The next frame; `None` at the end.
    pub(crate) fn read(mut source: impl Read) -> io::Result<Option<Self>> {
        let mut head = [0; 5];
        if source.read(&mut head[..1])? == 0 {
            return Ok(None);
        }
        source.read_exact(&mut head[1..])?;
        let [kind, length @ ..] = head;
        let length = u32::from_be_bytes(length);
        let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what.to_owned()));
        if length > MAX_BODY {
            return wrong("a frame of more than 64 MiB");
        }
        // Grows with what comes, not with what is announced.
        let mut body = Vec::new();
        source.take(length.into()).read_to_end(&mut body)?;
        if body.len() as u64 != u64::from(length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Some(match kind {
            b'o' => Self::Stdout(body),
            b'e' => Self::Stderr(body),
            b'm' => Self::Message(body),
            _ => return wrong("a frame of no known kind"),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_as_they_were_and_nothing_else_is_taken() {
        let frames = [
            Frame::Stdout(b"a\xff".to_vec()),
            Frame::Stderr(Vec::new()),
            Frame::message(&Request::Reset).unwrap(),
        ];
        let mut bytes = Vec::new();
        for frame in &frames {
            frame.write(&mut bytes).unwrap();
        }
        let mut source = bytes.as_slice();
        for frame in &frames {
            assert_eq!(Frame::read(&mut source).unwrap().as_ref(), Some(frame));
        }
        assert_eq!(Frame::read(&mut source).unwrap(), None);
        for wrong in [&b"o\0\0\0\x05ab"[..], b"o\0\0", b"x\0\0\0\0", b"o\xff\xff\xff\xff"] {
            assert!(Frame::read(wrong).is_err(), "{wrong:?}");
        }
        assert!(frames[0].read_message::<Request>().is_err());
    }

    #[test]
    fn a_failure_is_the_same_on_the_other_side() {
        let failure = Failure::new(Exit::Denied, "PERMISSION", "no").cause("because").hint("ask");
        let told: Told = failure.into();
        let text = serde_json::to_string(&told).unwrap();
        let back: Failure = serde_json::from_str::<Told>(&text).unwrap().into();
        assert_eq!(
            (back.exit, back.code.as_str(), back.message.as_str()),
            (Exit::Denied, "PERMISSION", "no")
        );
        assert_eq!((back.causes, back.hints), (vec!["because".to_owned()], vec!["ask".to_owned()]));
    }
}
