//! What a caller can do for a tool while it runs.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Artifact, BoxFuture, CallId, DocStore, Output, ToolError, Usage};

/// How far a call has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// What is being done.
    pub message: String,
    /// From 0 to 100, when it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    /// Which attempt this is, from 1.
    #[serde(default)]
    pub attempt: u32,
}

/// How much a log line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Every step.
    Trace,
    /// What helps to find a defect.
    Debug,
    /// What a person may want to follow.
    Info,
    /// What may be wrong.
    Warn,
    /// What is wrong.
    Error,
}

/// A line for the caller's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogLine {
    /// How much it matters.
    pub level: LogLevel,
    /// What happened.
    pub message: String,
}

/// Why somebody is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum QuestionKind {
    /// The tool needs to know something.
    Input {
        /// The JSON Schema of the answer; any text if there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        schema: Option<Value>,
    },
    /// The call itself is to be approved.
    Approval {
        /// The tool.
        tool: String,
        /// Its arguments, secrets masked.
        arguments: Value,
    },
}

/// A question to whoever is behind the caller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// The question, as a sentence.
    pub message: String,
    /// Why it is asked.
    #[serde(flatten)]
    pub kind: QuestionKind,
    /// What the answer is called, where the front names answers; the front finds a name if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Question {
    /// A question that any text answers.
    pub fn text(message: impl Into<String>) -> Self {
        Self { message: message.into(), kind: QuestionKind::Input { schema: None }, name: None }
    }

    /// A question whose answer fits a JSON Schema.
    pub fn with_schema(message: impl Into<String>, schema: Value) -> Self {
        Self { message: message.into(), kind: QuestionKind::Input { schema: Some(schema) }, name: None }
    }

    /// Names the answer.
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
    /// Yes, or the value that was asked for (`true` for an approval).
    Given {
        /// The value.
        value: Value,
    },
    /// No: the question was seen and not answered.
    Declined,
}

/// A completion that the caller's model is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleRequest {
    /// The prompt.
    pub prompt: String,
    /// Instructions that stand before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The longest answer, in tokens.
    pub max_tokens: u32,
    /// From 0 to 2; the model's default if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Texts that end the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop_sequences: Vec<String>,
}

impl SampleRequest {
    /// A prompt with the customary limit of 1,000 tokens.
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

/// The completion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The text.
    pub content: String,
    /// What it cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// A place that the caller works in, such as an open project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// Its address, mostly `file://` and a path.
    pub uri: String,
    /// What people call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// What became of a notice that nobody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It is on its way.
    Delivered,
    /// A newer one took its place.
    Coalesced,
    /// There was no room for it.
    Dropped,
}

/// What a caller can do for a tool while it runs. Each call brings its own.
///
/// `progress` and `log` return at once, whatever the caller does. `artifact` waits until the caller has taken the
/// file. `ask` and `sample` wait for an answer. What a caller cannot do it answers with `PRECONDITION`, never with
/// silence; that is also what the default methods do.
pub trait Port: Send + Sync {
    /// Tells how far a call has come. Must not block.
    fn progress(&self, call: CallId, progress: Progress) -> Delivery {
        let _ = (call, progress);
        Delivery::Dropped
    }

    /// Takes a log line. Must not block.
    fn log(&self, call: CallId, line: LogLine) -> Delivery {
        let _ = (call, line);
        Delivery::Dropped
    }

    /// Whether [`artifact`](Self::artifact) takes files at all, so that a tool can be told before it makes any.
    fn takes_artifacts(&self) -> bool {
        false
    }

    /// Takes a file.
    fn artifact(&self, call: CallId, artifact: Artifact) -> BoxFuture<'_, Result<(), ToolError>> {
        let _ = (call, artifact);
        Box::pin(async { Err(cannot("take artefacts while a call runs")) })
    }

    /// Asks whoever is behind the caller.
    fn ask<'a>(&'a self, call: CallId, question: &'a Question) -> BoxFuture<'a, Result<Answer, ToolError>> {
        let _ = (call, question);
        Box::pin(async { Err(cannot("answer questions")) })
    }

    /// Whether [`call`](Self::call) makes calls at all. Whoever runs the tool asks only for tools that it does not have.
    fn takes_calls(&self) -> bool {
        false
    }

    /// Calls a tool on the caller's side, for a tool that calls one.
    fn call<'a>(
        &'a self,
        call: CallId,
        tool: &'a str,
        arguments: &'a Value,
    ) -> BoxFuture<'a, Result<Output, ToolError>> {
        let _ = (call, tool, arguments);
        Box::pin(async { Err(cannot("call other tools")) })
    }

    /// The documents that the caller keeps for the tools that it calls; without any, whoever runs them keeps their own.
    fn documents(&self) -> Option<Arc<dyn DocStore>> {
        None
    }

    /// Asks the caller's model for a completion.
    fn sample<'a>(
        &'a self,
        call: CallId,
        request: &'a SampleRequest,
    ) -> BoxFuture<'a, Result<Sample, ToolError>> {
        let _ = (call, request);
        Box::pin(async { Err(cannot("complete prompts for a tool")) })
    }

    /// The places that the caller works in.
    fn roots(&self, call: CallId) -> BoxFuture<'_, Result<Vec<Root>, ToolError>> {
        let _ = call;
        Box::pin(async { Err(cannot("say where it works")) })
    }
}

fn cannot(verb: &str) -> ToolError {
    ToolError::precondition(format!("this caller cannot {verb}"))
        .suggest("Call the tool from a front that can, or give it what it needs as an argument.")
}

/// A caller that can do nothing but wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPort;

impl Port for NoPort {}
