//! Why Claude Code could not do what it was asked.

use std::fmt;

use serde_json::{Value, json};
use toolpost_core::Secret;

/// The longest sentence that is taken over from the program, in characters.
const MAX_FOREIGN: usize = 1000;

/// The four classes of errors: the kind of fix that is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// A setting or a credential is missing or wrong. Nothing was started, or nothing was answered.
    Configuration,
    /// A tool server, the provider or the container's daemon could not be reached.
    Connection,
    /// Claude Code was at work and failed, was refused something, reached a limit, or was killed.
    Execution,
    /// Something was used at the wrong time, such as a session that has ended.
    State,
}

impl ErrorClass {
    /// The word in records: `configuration`, `connection`, `execution` or `state`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Connection => "connection",
            Self::Execution => "execution",
            Self::State => "state",
        }
    }
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ClaudeCodeErrorKind {
    /// No credential was given. Nothing was started.
    CredentialMissing,
    /// The provider refused the credential, or the login has expired.
    CredentialRefused,
    /// A setting is wrong. Nothing was started.
    Setting,
    /// The program, or its image, is not there, or does not speak as it should.
    Program,
    /// The sandbox cannot provide the request.
    Sandbox,
    /// A tool server does not answer, or Claude Code could not connect to it.
    ToolServer,
    /// The provider could not be reached, or is overloaded.
    Provider,
    /// The container's daemon could not be reached.
    Daemon,
    /// Claude Code was not allowed to use a tool that it asked for.
    Denied,
    /// A limit on money, turns, time or tokens was reached.
    Limit,
    /// Claude Code says that it failed.
    Failed,
    /// The process or the container ended in the middle of its work.
    Killed,
    /// The caller asked to stop.
    Cancelled,
    /// The session has ended already.
    Ended,
}

impl ClaudeCodeErrorKind {
    /// The class that it belongs to.
    pub const fn class(self) -> ErrorClass {
        match self {
            Self::CredentialMissing
            | Self::CredentialRefused
            | Self::Setting
            | Self::Program
            | Self::Sandbox => ErrorClass::Configuration,
            Self::ToolServer | Self::Provider | Self::Daemon => ErrorClass::Connection,
            Self::Denied | Self::Limit | Self::Failed | Self::Killed | Self::Cancelled => {
                ErrorClass::Execution
            }
            Self::Ended => ErrorClass::State,
        }
    }

    /// The word in records, such as `tool_server`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CredentialMissing => "credential_missing",
            Self::CredentialRefused => "credential_refused",
            Self::Setting => "setting",
            Self::Program => "program",
            Self::Sandbox => "sandbox",
            Self::ToolServer => "tool_server",
            Self::Provider => "provider",
            Self::Daemon => "daemon",
            Self::Denied => "denied",
            Self::Limit => "limit",
            Self::Failed => "failed",
            Self::Killed => "killed",
            Self::Cancelled => "cancelled",
            Self::Ended => "ended",
        }
    }
}

/// An error with what to do about it. It holds no credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaudeCodeError {
    kind: ClaudeCodeErrorKind,
    message: String,
    hint: Option<String>,
}

impl ClaudeCodeError {
    pub(super) fn new(kind: ClaudeCodeErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(super) fn hint_maybe(mut self, hint: Option<String>) -> Self {
        self.hint = hint.or(self.hint);
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> ClaudeCodeErrorKind {
        self.kind
    }

    /// The kind of fix that is needed.
    pub fn class(&self) -> ErrorClass {
        self.kind.class()
    }

    /// The sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What to do next.
    pub fn suggestion(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// As it stands in a record.
    pub fn to_json(&self) -> Value {
        json!({
            "class": self.class().as_str(),
            "kind": self.kind.as_str(),
            "message": self.message,
            "hint": self.hint,
        })
    }
}

impl fmt::Display for ClaudeCodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

impl std::error::Error for ClaudeCodeError {}

impl From<toolpost_sandbox::EgressError> for ClaudeCodeError {
    fn from(error: toolpost_sandbox::EgressError) -> Self {
        toolpost_sandbox::Error::from(error).into()
    }
}

impl From<toolpost_sandbox::Error> for ClaudeCodeError {
    fn from(error: toolpost_sandbox::Error) -> Self {
        use toolpost_sandbox::Error as Sandbox;
        let kind = match &error {
            Sandbox::ProgramNotFound { .. } | Sandbox::NotExecutable { .. } => ClaudeCodeErrorKind::Program,
            Sandbox::Backend { .. } => of_backend(&error),
            _ => ClaudeCodeErrorKind::Sandbox,
        };
        let hint = error.hint();
        Self::new(kind, error.to_string()).hint_maybe(hint)
    }
}

/// What went wrong with a container.
#[cfg(target_os = "linux")]
fn of_backend(error: &toolpost_sandbox::Error) -> ClaudeCodeErrorKind {
    use toolpost_docker::DockerError;
    match DockerError::of(error) {
        Some(DockerError::ContainerGone { .. }) => ClaudeCodeErrorKind::Killed,
        Some(DockerError::ImageMissing { .. } | DockerError::ImageUnusable { .. }) => {
            ClaudeCodeErrorKind::Program
        }
        Some(DockerError::NotConfined { .. }) => ClaudeCodeErrorKind::Sandbox,
        Some(
            DockerError::Address { .. }
            | DockerError::RuntimeMissing { .. }
            | DockerError::Unsupported { .. },
        ) => ClaudeCodeErrorKind::Setting,
        _ => ClaudeCodeErrorKind::Daemon,
    }
}

#[cfg(not(target_os = "linux"))]
fn of_backend(_error: &toolpost_sandbox::Error) -> ClaudeCodeErrorKind {
    ClaudeCodeErrorKind::Daemon
}

/// What a program says, for a sentence of ours: one line, of bounded length, without the secrets.
pub(super) fn foreign(text: &str, secrets: &[Secret]) -> String {
    let scrubbed = secrets.iter().fold(text.to_owned(), |text, secret| secret.scrub(&text));
    let line: String = scrubbed.split_whitespace().collect::<Vec<_>>().join(" ");
    let line: String = line.chars().filter(|letter| !letter.is_control()).collect();
    match line.char_indices().nth(MAX_FOREIGN) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}
