//! What happens, as it happens: one vocabulary for calls and runs.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{Artifact, CallId, CallRecord, LogLine, Progress, RunId, RunRecord, ToolError, Usage};

/// Something that happened. As JSON, each has a `type`; fields are only ever added.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type")]
#[non_exhaustive]
pub enum Event {
    /// A run begins.
    #[serde(rename = "run.started")]
    RunStarted {
        /// The run.
        run: RunId,
        /// The run that it was made from, by an agent that is a tool.
        #[serde(skip_serializing_if = "Option::is_none")]
        parent: Option<RunId>,
        /// The model.
        model: String,
        /// The tools that it is offered.
        tools: Vec<String>,
    },
    /// The model is asked.
    #[serde(rename = "turn.started")]
    TurnStarted {
        /// The run.
        run: RunId,
        /// Which time, from 1.
        iteration: u32,
    },
    /// The model wrote a piece of text.
    #[serde(rename = "text.delta")]
    TextDelta {
        /// The run.
        run: RunId,
        /// The piece.
        text: String,
    },
    /// The model wrote a piece of its reasoning.
    #[serde(rename = "thinking.delta")]
    ThinkingDelta {
        /// The run.
        run: RunId,
        /// The piece.
        text: String,
    },
    /// The model has answered.
    #[serde(rename = "turn.finished")]
    TurnFinished {
        /// The run.
        run: RunId,
        /// Which time, from 1.
        iteration: u32,
        /// Why it stopped writing.
        stop_reason: String,
        /// What it consumed.
        usage: Usage,
    },
    /// A model has consumed something: one for each answer, and one for all completions that a tool call asked for.
    #[serde(rename = "usage")]
    Usage(UsageEvent),
    /// The provider runs one of its own tools for an answer.
    #[serde(rename = "hosted.started")]
    HostedStarted {
        /// The run.
        run: RunId,
        /// The provider's id of the call.
        id: String,
        /// The tool, by the provider's name, such as `bash_code_execution`.
        tool: String,
        /// What the tool was given, such as code or a query; absent if the provider does not say so.
        #[serde(skip_serializing_if = "Option::is_none")]
        input: Option<Arc<Value>>,
    },
    /// A tool that the provider runs itself has a result. Not every provider tells of one.
    #[serde(rename = "hosted.finished")]
    HostedFinished {
        /// The run.
        run: RunId,
        /// The provider's id of the call.
        id: String,
        /// The tool, by the provider's name; where the call is not known, the kind of result.
        tool: String,
        /// What came of it, as far as the provider says: `is_error`, `error_code`, `text`, `stderr`, `return_code`, `files`
        /// and `sources`.
        output: Arc<Value>,
    },
    /// A tool is called.
    #[serde(rename = "call.started")]
    CallStarted {
        /// The call.
        call: CallId,
        /// The call that it was made from.
        #[serde(skip_serializing_if = "Option::is_none")]
        parent: Option<CallId>,
        /// The tool.
        tool: Arc<str>,
        /// Its arguments, secrets masked.
        arguments: Arc<Value>,
    },
    /// A tool tells how far it has come.
    #[serde(rename = "call.progress")]
    CallProgress {
        /// The call.
        call: CallId,
        /// How far.
        #[serde(flatten)]
        progress: Progress,
    },
    /// A tool writes to the log.
    #[serde(rename = "call.log")]
    CallLog {
        /// The call.
        call: CallId,
        /// The line.
        #[serde(flatten)]
        line: LogLine,
    },
    /// A tool made a file.
    #[serde(rename = "call.artifact")]
    CallArtifact {
        /// The call.
        call: CallId,
        /// The file.
        artifact: Artifact,
    },
    /// A tool is run again.
    #[serde(rename = "call.retry")]
    CallRetry {
        /// The call.
        call: CallId,
        /// The attempt that failed, from 1.
        attempt: u32,
        /// Why.
        error: ToolError,
        /// The wait before the next, in milliseconds.
        wait_ms: u64,
    },
    /// A call is over.
    #[serde(rename = "call.finished")]
    CallFinished {
        /// Everything that is kept of it.
        record: Arc<CallRecord>,
    },
    /// Something that the owner should know.
    #[serde(rename = "notice")]
    Notice {
        /// As a sentence.
        message: String,
    },
    /// A run is over.
    #[serde(rename = "run.finished")]
    RunFinished {
        /// Everything that is kept of it.
        record: Arc<RunRecord>,
    },
}

/// What an answer of a model has consumed, one that failed or was given up among them, or all completions that a tool call
/// asked for, or what a tool says that it has consumed itself. The sum of a run's events is what its record says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UsageEvent {
    /// The run.
    pub run: RunId,
    /// Which time the run has asked its model, from 1. The answer that sums a run up has the number of the last one.
    pub iteration: u32,
    /// The model that answered or was asked, such as `anthropic/claude-opus-5`; the tool, where only that says something.
    pub model: String,
    /// What it consumed, as far as that was told.
    pub usage: Usage,
    /// What that cost in US dollars; absent is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// How many tools the answer asks for.
    pub tool_calls: u32,
    /// What the run's caller wants to have with it.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

/// Who is told of events. It is called where they happen and must return at once.
pub type EventSink = Arc<dyn Fn(&Event) + Send + Sync>;
