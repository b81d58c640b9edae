//! Events of calls and runs.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{Artifact, CallId, CallRecord, LogLine, Progress, RunId, RunRecord, ToolError, Usage};

/// An event. Its JSON form has a `type`; new versions only add fields.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type")]
#[non_exhaustive]
pub enum Event {
    /// A run started.
    #[serde(rename = "run.started")]
    RunStarted {
        /// The run.
        run: RunId,
        /// The parent run, if an agent that is a tool started this one.
        #[serde(skip_serializing_if = "Option::is_none")]
        parent: Option<RunId>,
        /// The model.
        model: String,
        /// The tools offered to the model.
        tools: Vec<String>,
    },
    /// A model request started.
    #[serde(rename = "turn.started")]
    TurnStarted {
        /// The run.
        run: RunId,
        /// Number of the request, from 1.
        iteration: u32,
    },
    /// A piece of the model's text.
    #[serde(rename = "text.delta")]
    TextDelta {
        /// The run.
        run: RunId,
        /// The text.
        text: String,
    },
    /// A piece of the model's reasoning.
    #[serde(rename = "thinking.delta")]
    ThinkingDelta {
        /// The run.
        run: RunId,
        /// The text.
        text: String,
    },
    /// A model response finished.
    #[serde(rename = "turn.finished")]
    TurnFinished {
        /// The run.
        run: RunId,
        /// Number of the request, from 1.
        iteration: u32,
        /// The stop reason.
        stop_reason: String,
        /// Token usage.
        usage: Usage,
    },
    /// Token usage: one event per response, and one for all completions of a tool call.
    #[serde(rename = "usage")]
    Usage(UsageEvent),
    /// A hosted tool of the provider started.
    #[serde(rename = "hosted.started")]
    HostedStarted {
        /// The run.
        run: RunId,
        /// The provider's id of the call.
        id: String,
        /// The provider's name of the tool, such as `bash_code_execution`.
        tool: String,
        /// The tool's input, such as code or a query; absent if the provider does not report it.
        #[serde(skip_serializing_if = "Option::is_none")]
        input: Option<Arc<Value>>,
    },
    /// A hosted tool of the provider finished. Not every provider reports this.
    #[serde(rename = "hosted.finished")]
    HostedFinished {
        /// The run.
        run: RunId,
        /// The provider's id of the call.
        id: String,
        /// The provider's name of the tool; for an unknown call, the kind of result.
        tool: String,
        /// The result, as far as the provider reports it: `is_error`, `error_code`, `text`, `stderr`, `return_code`,
        /// `files` and `sources`.
        output: Arc<Value>,
    },
    /// A tool call started.
    #[serde(rename = "call.started")]
    CallStarted {
        /// The call.
        call: CallId,
        /// The parent call.
        #[serde(skip_serializing_if = "Option::is_none")]
        parent: Option<CallId>,
        /// The tool.
        tool: Arc<str>,
        /// Its arguments, secrets masked.
        arguments: Arc<Value>,
    },
    /// A tool reported progress.
    #[serde(rename = "call.progress")]
    CallProgress {
        /// The call.
        call: CallId,
        /// The progress.
        #[serde(flatten)]
        progress: Progress,
    },
    /// A tool logged a line.
    #[serde(rename = "call.log")]
    CallLog {
        /// The call.
        call: CallId,
        /// The line.
        #[serde(flatten)]
        line: LogLine,
    },
    /// A tool delivered a file.
    #[serde(rename = "call.artifact")]
    CallArtifact {
        /// The call.
        call: CallId,
        /// The file.
        artifact: Artifact,
    },
    /// A tool is retried.
    #[serde(rename = "call.retry")]
    CallRetry {
        /// The call.
        call: CallId,
        /// The failed attempt, from 1.
        attempt: u32,
        /// Its error.
        error: ToolError,
        /// The wait before the next attempt, in milliseconds.
        wait_ms: u64,
    },
    /// A call finished.
    #[serde(rename = "call.finished")]
    CallFinished {
        /// Its record.
        record: Arc<CallRecord>,
    },
    /// A message for the operator.
    #[serde(rename = "notice")]
    Notice {
        /// The message.
        message: String,
    },
    /// A run finished.
    #[serde(rename = "run.finished")]
    RunFinished {
        /// Its record.
        record: Arc<RunRecord>,
    },
}

/// Usage of a model response, of all completions of a tool call, or of a tool that reports its own.
///
/// Failed and abandoned responses count. The sum over a run's events equals the usage of its record.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UsageEvent {
    /// The run.
    pub run: RunId,
    /// Number of the model request in the run, from 1. The final summary has the number of the last request.
    pub iteration: u32,
    /// The model, such as `anthropic/claude-opus-5`; the tool, if only the tool reports usage.
    pub model: String,
    /// Token usage, as far as it is reported.
    pub usage: Usage,
    /// Cost in US dollars; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Number of tool calls in the response.
    pub tool_calls: u32,
    /// Metadata of the run's caller.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

/// Receives events. Runs where they occur and must return immediately.
pub type EventSink = Arc<dyn Fn(&Event) + Send + Sync>;
