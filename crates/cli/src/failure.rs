//! Failures of the command, printed as text or JSON.

use std::io::{self, ErrorKind};
use std::path::Path;

use serde_json::{Value, json};
use toolpost_core::{CallError, Code, ToolError};
use toolpost_llm::ModelError;

use crate::exit::Exit;
use crate::style::label;
use crate::{crash, hints};

/// The maximum number of printed lines of a program's stderr.
const MAX_STDERR: usize = 12;

/// A failure: exit code, error code, message, causes, hints.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) causes: Vec<String>,
    pub(crate) hints: Vec<String>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, code: &str, message: impl Into<String>) -> Self {
        Self { exit, code: code.to_owned(), message: message.into(), causes: Vec::new(), hints: Vec::new() }
    }

    /// An invalid command line, script or setting.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "USAGE", message)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    pub(crate) fn cause(mut self, cause: impl Into<String>) -> Self {
        self.causes.push(cause.into());
        self
    }

    /// A file of the operator that is unusable.
    pub(crate) fn file(what: &str, path: &Path, error: &io::Error) -> Self {
        let failure =
            Self::usage(format!("{what} `{}`: {}", label(&path.display().to_string()), reason(error)));
        let hint = match error.kind() {
            ErrorKind::NotFound => "Check the name; a relative path starts at the current directory.",
            ErrorKind::PermissionDenied => "Check the file's owner and mode, and the user of this command.",
            ErrorKind::AlreadyExists => {
                "Nothing is overwritten: choose a new name, or move the existing file."
            }
            ErrorKind::IsADirectory => "Name a file in it.",
            ErrorKind::InvalidData => "The file must be UTF-8 text.",
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "Free some space, or choose a path on another disk."
            }
            _ => return failure,
        };
        failure.hint(hint)
    }

    /// Converts the failure to an error of a tool or a source.
    pub(crate) fn into_tool_error(self) -> ToolError {
        let code = match self.exit {
            Exit::Denied => Code::Permission,
            Exit::Usage => Code::InvalidInput,
            Exit::Credentials => Code::Precondition,
            _ => Code::Dependency,
        };
        // A message often ends with its cause.
        let causes = self.causes.iter().fold(self.message, |text, cause| {
            if text.contains(cause.as_str()) { text } else { format!("{text}: {cause}") }
        });
        ToolError::new(code, causes).suggest_maybe(self.hints.into_iter().next())
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({ "error": {
            "code": self.code,
            "message": self.message,
            "causes": self.causes,
            "hints": self.hints,
            "exit": self.exit.number(),
        }})
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        error.into_inner().into()
    }
}

impl From<ToolError> for Failure {
    fn from(error: ToolError) -> Self {
        // The end of stderr usually has the reason.
        let stderr = error.context().get("stderr").and_then(Value::as_str).map(str::trim).unwrap_or_default();
        let skipped = stderr.lines().count().saturating_sub(MAX_STDERR);
        let last = stderr.lines().skip(skipped).fold("stderr:".to_owned(), |text, line| text + "\n" + line);
        let stderr = (!stderr.is_empty()).then_some(last);
        let run = error.context().get("run").and_then(Value::as_str);
        let run = run.map(|id| format!("`toolpost runs show {id}` shows the run."));
        Self {
            exit: (&error).into(),
            code: error.code().as_str().to_owned(),
            message: error.message().to_owned(),
            // An error without a message has the message of its first cause.
            causes: error
                .causes()
                .into_iter()
                .filter(|cause| cause != error.message())
                .chain(stderr)
                .collect(),
            hints: hints::of_error(&error).or_else(|| crash::hint(&error)).into_iter().chain(run).collect(),
        }
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        let hint = hints::of_model(&error).map(str::to_owned);
        let attempts = error.details.attempts.as_slice();
        let causes = match attempts {
            // The message already describes a single attempt.
            [] | [_] => Vec::new(),
            [first, rest @ ..] if rest.iter().all(|attempt| attempt.reason == first.reason) => {
                vec![format!("{} attempts failed with the same error", attempts.len())]
            }
            attempts => {
                let lines = attempts.iter();
                lines.map(|attempt| format!("attempt {}: {}", attempt.number, attempt.reason)).collect()
            }
        };
        Self {
            exit: (&error.kind).into(),
            code: error.kind.as_str().to_uppercase(),
            message: error.summary(),
            causes,
            hints: hint.into_iter().collect(),
        }
    }
}

impl From<toolpost_sandbox::EgressError> for Failure {
    fn from(error: toolpost_sandbox::EgressError) -> Self {
        toolpost_sandbox::Error::from(error).into()
    }
}

impl From<toolpost_sandbox::Error> for Failure {
    fn from(error: toolpost_sandbox::Error) -> Self {
        let code = match &error {
            toolpost_sandbox::Error::SessionEnded { .. } => "SESSION_ENDED",
            toolpost_sandbox::Error::Requirement { .. } => "REQUIREMENT",
            toolpost_sandbox::Error::Backend { .. } => "BACKEND",
            _ => "SANDBOX",
        };
        let mut failure = Self::new((&error).into(), code, error.to_string());
        failure.hints.extend(error.hint().as_ref().map(hints::of_sandbox));
        failure
    }
}

impl Failure {
    /// A resource of this machine that is unavailable, such as a thread or disk space.
    pub(crate) fn of_machine(what: &str, error: &io::Error) -> Self {
        let exit = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Exit::Limit,
            _ => Exit::Failed,
        };
        Self::new(exit, "IO", format!("{what}: {}", reason(error)))
    }
}

/// The text of an I/O error without its number.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error().and_then(|number| text.strip_suffix(&format!(" (os error {number})"))) {
        Some(short) => short.to_owned(),
        None => text,
    }
}

/// Splits an error of clap into message, tips and usage.
impl From<&clap::Error> for Failure {
    fn from(error: &clap::Error) -> Self {
        use clap::error::ErrorKind::{DisplayHelpOnMissingArgumentOrSubcommand, MissingSubcommand};
        if matches!(error.kind(), DisplayHelpOnMissingArgumentOrSubcommand | MissingSubcommand) {
            return Self::usage("missing command").hint("`toolpost --help` lists the commands.");
        }
        let text = error.render().to_string();
        let mut parts =
            text.split("\n\n").map(|part| part.lines().map(str::trim).collect::<Vec<_>>().join(" "));
        let message = parts.next().unwrap_or_default();
        let mut failure = Self::usage(message.strip_prefix("error: ").unwrap_or(&message));
        failure.hints.extend(
            parts
                .map(|part| part.strip_prefix("tip: ").unwrap_or(&part).to_owned())
                .filter(|part| !part.is_empty()),
        );
        failure
    }
}
