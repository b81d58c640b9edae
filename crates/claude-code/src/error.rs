//! Errors of Claude Code.

use std::fmt;

use serde_json::{Value, json};
use toolpost_core::{Secret, Suggestion, is_hidden};

/// Characters of a text of the program in a message.
const MAX_FOREIGN: usize = 1000;

/// The class of an error, by the fix that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// A setting or a credential is missing or wrong.
    Configuration,
    /// A tool server, the provider or the container daemon is unreachable.
    Connection,
    /// Claude Code failed, was denied a tool, reached a limit, or was killed.
    Execution,
    /// An object was used in a wrong state, such as a session that has ended.
    State,
}

impl ErrorClass {
    /// The name in records: `configuration`, `connection`, `execution` or `state`.
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

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ClaudeCodeErrorKind {
    /// No credential was given. Nothing was started.
    CredentialMissing,
    /// The provider rejected the credential, or the login has expired.
    CredentialRefused,
    /// A setting is wrong. Nothing was started.
    Setting,
    /// The program or its image is missing, or violates the protocol.
    Program,
    /// The sandbox cannot provide the requested confinement.
    Sandbox,
    /// A tool server is unreachable.
    ToolServer,
    /// The provider is unreachable or overloaded.
    Provider,
    /// The container daemon is unreachable.
    Daemon,
    /// Claude Code was denied a tool.
    Denied,
    /// A limit of cost, turns, time or tokens was reached.
    Limit,
    /// Claude Code reported a failure.
    Failed,
    /// The process or the container ended during a turn.
    Killed,
    /// The caller cancelled the turn.
    Cancelled,
    /// The session has ended.
    Ended,
}

impl ClaudeCodeErrorKind {
    /// An error of this kind.
    pub(super) fn error(self, message: impl Into<String>) -> ClaudeCodeError {
        ClaudeCodeError { kind: self, message: message.into(), hint: None }
    }

    /// The class of the kind.
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

    /// The name in records, such as `tool_server`.
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

/// An error with a suggestion. It has no credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaudeCodeError {
    kind: ClaudeCodeErrorKind,
    message: String,
    hint: Option<Box<Suggestion>>,
}

impl ClaudeCodeError {
    pub(super) fn hint(mut self, hint: impl Into<Suggestion>) -> Self {
        self.hint = Some(Box::new(hint.into()));
        self
    }

    /// The kind.
    pub fn kind(&self) -> ClaudeCodeErrorKind {
        self.kind
    }

    /// The class, by the fix that the error needs.
    pub fn class(&self) -> ErrorClass {
        self.kind.class()
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The suggestion.
    pub fn suggestion(&self) -> Option<&str> {
        self.whole_suggestion().map(Suggestion::text)
    }

    /// The suggestion with its hint.
    pub fn whole_suggestion(&self) -> Option<&Suggestion> {
        self.hint.as_deref()
    }

    /// The error in records.
    pub fn to_json(&self) -> Value {
        json!({
            "class": self.class().as_str(),
            "kind": self.kind.as_str(),
            "message": self.message,
            "hint": self.suggestion(),
        })
    }
}

impl fmt::Display for ClaudeCodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.suggestion().map_or(Ok(()), |hint| write!(f, "; {hint}"))
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
            Sandbox::Backend { .. } => kind_of_backend(&error),
            _ => ClaudeCodeErrorKind::Sandbox,
        };
        Self {
            hint: error.hint().map(|hint| Box::new(Suggestion::new(&hint))),
            ..kind.error(error.to_string())
        }
    }
}

/// The kind of an error of a container.
#[cfg(target_os = "linux")]
fn kind_of_backend(error: &toolpost_sandbox::Error) -> ClaudeCodeErrorKind {
    use toolpost_docker::DockerError;
    match DockerError::from_sandbox(error) {
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
fn kind_of_backend(_error: &toolpost_sandbox::Error) -> ClaudeCodeErrorKind {
    ClaudeCodeErrorKind::Daemon
}

/// A text of the program for a message: one line of bounded length, without the secrets.
pub(super) fn redact(text: &str, secrets: &[Secret]) -> String {
    let scrubbed = secrets.iter().fold(text.to_owned(), |text, secret| secret.scrub(&text));
    let line: String = scrubbed.split_whitespace().collect::<Vec<_>>().join(" ");
    let line: String = line.chars().filter(|letter| !letter.is_control() && !is_hidden(*letter)).collect();
    match line.char_indices().nth(MAX_FOREIGN) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

/// A text of the application for a message: at most 60 characters, without control and hidden characters.
pub(super) fn printable(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control() && !is_hidden(*letter)).take(60).collect()
}
