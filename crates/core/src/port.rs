//! The caller's side of a running call.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Artifact, BoxFuture, CallId, Ctx, DocStore, Output, ToolError, Usage};

/// Progress of a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The current step.
    pub message: String,
    /// From 0 to 100, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    /// Number of the attempt, from 1.
    #[serde(default)]
    pub attempt: u32,
}

/// Severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Every step.
    Trace,
    /// Debugging details.
    Debug,
    /// Information for users.
    Info,
    /// A possible problem.
    Warn,
    /// An error.
    Error,
}

impl LogLevel {
    /// The level of a name in any case, including Python's names; `None` for another word.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "trace" => Self::Trace,
            "debug" => Self::Debug,
            "info" => Self::Info,
            "warn" | "warning" => Self::Warn,
            "error" | "critical" | "fatal" => Self::Error,
            _ => return None,
        })
    }
}

/// A line for the caller's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogLine {
    /// Its severity.
    pub level: LogLevel,
    /// The message.
    pub message: String,
}

/// The purpose of a question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum QuestionKind {
    /// The tool needs input.
    Input {
        /// JSON Schema of the answer; without one, any text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        schema: Option<Value>,
    },
    /// The call needs approval.
    Approval {
        /// The tool.
        tool: String,
        /// Its arguments, secrets masked.
        arguments: Value,
    },
}

/// A question to the user behind the caller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// The text of the question, one sentence.
    pub message: String,
    /// Its purpose.
    #[serde(flatten)]
    pub kind: QuestionKind,
    /// Field name of the answer, for fronts that name answers; by default the front chooses one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Question {
    /// A question with a free-text answer.
    pub fn text(message: impl Into<String>) -> Self {
        Self { message: message.into(), kind: QuestionKind::Input { schema: None }, name: None }
    }

    /// A question whose answer must fit a JSON Schema.
    pub fn with_schema(message: impl Into<String>, schema: Value) -> Self {
        Self { message: message.into(), kind: QuestionKind::Input { schema: Some(schema) }, name: None }
    }

    /// Sets the field name of the answer.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }
}

/// The answer to a [`Question`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// Yes, or the requested value (`true` for an approval).
    Given {
        /// The value.
        value: Value,
    },
    /// The user declined to answer.
    Declined,
}

/// A request for a completion from the caller's model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleRequest {
    /// The prompt.
    pub prompt: String,
    /// System instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Maximum length of the answer, in tokens.
    pub max_tokens: u32,
    /// Sampling temperature, 0 to 2; defaults to the model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Stop sequences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop_sequences: Vec<String>,
}

impl SampleRequest {
    /// A prompt with a limit of 1,000 tokens.
    pub fn new(prompt: impl Into<String>) -> Self {
        Self {
            prompt: prompt.into(),
            system: None,
            max_tokens: 1000,
            temperature: None,
            stop_sequences: Vec::new(),
        }
    }
}

/// A completion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The text.
    pub content: String,
    /// Token usage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// A directory or project that the caller works in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// Its URI, usually `file://` and a path.
    pub uri: String,
    /// Its display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The fate of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Sent.
    Delivered,
    /// Replaced by a newer one.
    Coalesced,
    /// Dropped: the buffer was full.
    Dropped,
}

/// The caller's side of a running call. Each call has its own.
///
/// `progress` and `log` return immediately. `artifact` waits until the caller accepts the file. `ask` and `sample` wait
/// for an answer. A caller reports a missing capability with `PRECONDITION`, as the default methods do.
pub trait Port: Send + Sync {
    /// Receives progress. Must not block.
    fn progress(&self, call: CallId, progress: Progress) -> Delivery {
        let _ = (call, progress);
        Delivery::Dropped
    }

    /// Receives a log line. Must not block.
    fn log(&self, call: CallId, line: LogLine) -> Delivery {
        let _ = (call, line);
        Delivery::Dropped
    }

    /// Whether [`artifact`](Self::artifact) accepts files, so that a tool can know before it creates one.
    fn takes_artifacts(&self) -> bool {
        false
    }

    /// Accepts a file.
    fn artifact(&self, call: CallId, artifact: Artifact) -> BoxFuture<'_, Result<(), ToolError>> {
        let _ = (call, artifact);
        Box::pin(async { Err(cannot("accept artifacts during a call")) })
    }

    /// Asks the user behind the caller.
    fn ask<'a>(&'a self, call: CallId, question: &'a Question) -> BoxFuture<'a, Result<Answer, ToolError>> {
        let _ = (call, question);
        Box::pin(async { Err(cannot("answer questions")) })
    }

    /// Whether [`call`](Self::call) works. The host uses it only for tools that it does not have itself.
    fn takes_calls(&self) -> bool {
        false
    }

    /// Calls a tool on the caller's side.
    fn call<'a>(
        &'a self,
        call: CallId,
        tool: &'a str,
        arguments: &'a Value,
    ) -> BoxFuture<'a, Result<Output, ToolError>> {
        let _ = (call, tool, arguments);
        Box::pin(async { Err(cannot("call other tools")) })
    }

    /// The caller's document store; without one, the host uses its own.
    fn documents(&self) -> Option<Arc<dyn DocStore>> {
        None
    }

    /// Requests a completion from the caller's model.
    fn sample<'a>(
        &'a self,
        call: CallId,
        request: &'a SampleRequest,
    ) -> BoxFuture<'a, Result<Sample, ToolError>> {
        let _ = (call, request);
        Box::pin(async { Err(cannot("sample from a model")) })
    }

    /// Directories that the caller works in.
    fn roots(&self, call: CallId) -> BoxFuture<'_, Result<Vec<Root>, ToolError>> {
        let _ = call;
        Box::pin(async { Err(cannot("list its roots")) })
    }
}

fn cannot(verb: &str) -> ToolError {
    ToolError::precondition(format!("this caller cannot {verb}"))
        .suggest("Use a front that can, or pass the value as an argument.")
}

/// A caller without capabilities.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPort;

impl Port for NoPort {}

/// A call as the port of other calls that its tool makes.
pub(crate) struct CtxPort(pub(crate) Ctx);

impl Port for CtxPort {
    fn progress(&self, _call: CallId, progress: Progress) -> Delivery {
        self.0.progress(progress.message, progress.percent);
        Delivery::Delivered
    }

    fn log(&self, _call: CallId, line: LogLine) -> Delivery {
        self.0.log(line.level, line.message);
        Delivery::Delivered
    }

    fn takes_artifacts(&self) -> bool {
        true
    }

    fn artifact(&self, _call: CallId, artifact: Artifact) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(self.0.artifact(artifact))
    }

    fn ask<'a>(&'a self, _call: CallId, question: &'a Question) -> BoxFuture<'a, Result<Answer, ToolError>> {
        Box::pin(self.0.ask(question.clone()))
    }

    fn sample<'a>(
        &'a self,
        _call: CallId,
        request: &'a SampleRequest,
    ) -> BoxFuture<'a, Result<Sample, ToolError>> {
        Box::pin(self.0.sample(request.clone()))
    }
}
