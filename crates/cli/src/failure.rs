//! What went wrong, in the form that a person or a program is told.

use serde_json::{Value, json};
use toolpost_core::ToolError;
use toolpost_llm::ModelError;

use crate::exit::Exit;

/// A failure: a code for programs, a sentence, its causes, and what to do next.
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

    /// The command line, a script or a setting is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "USAGE", message)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// A file of the operator could not be used.
    pub(crate) fn file(what: &str, path: &std::path::Path, error: &std::io::Error) -> Self {
        Self::usage(format!("{what} `{}`: {error}", path.display()))
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

impl From<ToolError> for Failure {
    fn from(error: ToolError) -> Self {
        Self {
            exit: error.code().into(),
            code: error.code().as_str().to_owned(),
            message: error.message().to_owned(),
            // The message of an error without a sentence of its own is that of its first cause.
            causes: error.causes().into_iter().filter(|cause| cause != error.message()).collect(),
            hints: error.suggestion().map(str::to_owned).into_iter().collect(),
        }
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        let hint = error.hint().map(str::to_owned);
        let text = error.to_string();
        // The error's own text ends in its hint, which has a line of its own here.
        let message =
            hint.as_deref().and_then(|hint| text.strip_suffix(hint)).unwrap_or(&text).trim_end().to_owned();
        Self {
            exit: (&error.kind).into(),
            code: error.kind.as_str().to_uppercase(),
            message,
            causes: error
                .details
                .attempts
                .iter()
                .map(|attempt| format!("attempt {}: {}", attempt.number, attempt.reason))
                .collect(),
            hints: hint.into_iter().collect(),
        }
    }
}

impl From<toolpost_sandbox::Error> for Failure {
    fn from(error: toolpost_sandbox::Error) -> Self {
        let mut failure = Self::new((&error).into(), "SANDBOX", error.to_string());
        failure.hints.extend(error.hint());
        failure
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(Exit::Unreachable, "IO", error.to_string())
    }
}

/// What the reader of arguments has to say: help and version are no failure.
pub(crate) fn of_arguments(error: &clap::Error) -> Exit {
    // If nobody reads it, there is nobody to tell.
    let _ = error.print();
    if error.use_stderr() { Exit::Usage } else { Exit::Ok }
}
