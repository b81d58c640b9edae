//! The protocol between a command and the holder of a session: frames with kind, length and body.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_sandbox::{Language, Level};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::sandbox_options::SandboxOptions;

/// The maximum size of a body, in bytes.
const MAX_BODY: u32 = 64 << 20;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SessionRequest {
    /// Start: the only first frame of a new holder.
    Begin {
        /// The name of the session.
        id: String,
        /// The options of its sandbox.
        options: Box<SandboxOptions>,
    },
    /// Run a cell.
    Run {
        /// The expected options; missing ones match all.
        options: Box<SandboxOptions>,
        /// The code.
        code: String,
        /// Its arguments.
        arguments: Vec<String>,
        /// The time limit; defaults to the session's.
        timeout: Option<Duration>,
        /// Files to copy into the workspace first, by name.
        attach: Vec<(String, PathBuf)>,
        /// The artifact directory.
        artifacts: Option<PathBuf>,
    },
    /// Describe the session.
    Describe,
    /// Restart the interpreter; files stay.
    Reset,
    /// Interrupt the running cell.
    Interrupt,
    /// Fork the session.
    Fork {
        /// The name of the fork.
        id: String,
    },
    /// End the session.
    End,
}

/// The state of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Description {
    /// The name.
    pub(crate) id: String,
    /// The language.
    pub(crate) language: Language,
    /// The level of its sandbox.
    pub(crate) level: Level,
    /// The idle time.
    pub(crate) idle_ms: u64,
    /// The remaining idle time; `None` while code runs in it or a fork.
    pub(crate) ends_after_ms: Option<u64>,
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// Success.
    Done,
    /// The description of the session.
    Described(Description),
    /// The result of a cell.
    Ended {
        /// The outcome.
        outcome: Value,
        /// The stored path of each artifact; `None` for a rejected one.
        files: Vec<Option<String>>,
        /// The reason why artifacts were rejected.
        trouble: Option<FailureMessage>,
    },
    /// A failure.
    Failed(FailureMessage),
}

/// A failure as JSON, for the command that prints it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FailureMessage {
    exit: u8,
    code: String,
    message: String,
    causes: Vec<String>,
    hints: Vec<String>,
}

impl From<Failure> for FailureMessage {
    fn from(failure: Failure) -> Self {
        let Failure { exit, code, message, causes, hints } = failure;
        Self { exit: exit.number(), code, message, causes, hints }
    }
}

impl From<FailureMessage> for Failure {
    fn from(message: FailureMessage) -> Self {
        let exit = Exit::of_number(message.exit).unwrap_or(Exit::Failed);
        Self {
            exit,
            code: message.code,
            message: message.message,
            causes: message.causes,
            hints: message.hints,
        }
    }
}

/// One frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A piece of standard output.
    Stdout(Vec<u8>),
    /// A piece of standard error.
    Stderr(Vec<u8>),
    /// A request or an answer as JSON.
    Message(Vec<u8>),
}

impl Frame {
    /// The frame of a request or an answer.
    pub(crate) fn message(value: &impl Serialize) -> io::Result<Self> {
        Ok(Self::Message(serde_json::to_vec(value)?))
    }

    /// The message of a frame.
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
        // Grows with received bytes, not with the announced length.
        let mut body = Vec::new();
        source.take(length.into()).read_to_end(&mut body)?;
        if body.len() as u64 != u64::from(length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Some(match kind {
            b'o' => Self::Stdout(body),
            b'e' => Self::Stderr(body),
            b'm' => Self::Message(body),
            _ => return wrong("a frame of unknown kind"),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip_and_invalid_ones_are_rejected() {
        let frames = [
            Frame::Stdout(b"a\xff".to_vec()),
            Frame::Stderr(Vec::new()),
            Frame::message(&SessionRequest::Reset).unwrap(),
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
        assert!(frames[0].read_message::<SessionRequest>().is_err());
    }

    #[test]
    fn a_failure_round_trips() {
        let failure = Failure::new(Exit::Denied, "PERMISSION", "no").cause("because").hint("ask");
        let message: FailureMessage = failure.into();
        let text = serde_json::to_string(&message).unwrap();
        let back: Failure = serde_json::from_str::<FailureMessage>(&text).unwrap().into();
        assert_eq!(
            (back.exit, back.code.as_str(), back.message.as_str()),
            (Exit::Denied, "PERMISSION", "no")
        );
        assert_eq!((back.causes, back.hints), (vec!["because".to_owned()], vec!["ask".to_owned()]));
    }
}
