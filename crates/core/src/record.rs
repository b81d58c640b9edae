//! What is kept of every call and every run.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Artifact, CallId, Caller, RunId, ScopeId, Status, Timestamp, ToolError};

/// The version of the record format.
const VERSION: u8 = 1;

/// What a model consumed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Tokens read, those from the cache included.
    pub input_tokens: u64,
    /// Tokens written, reasoning included.
    pub output_tokens: u64,
    /// Of the tokens read, those that came from the provider's cache.
    pub cache_read_tokens: u64,
    /// Of the tokens read, those that were written to the provider's cache.
    pub cache_write_tokens: u64,
    /// Of the tokens written, those of reasoning, when the provider says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// The seconds of a provider's containers for code that are billed, with the least time of each. The provider does not
    /// tell: this is an estimate, and the hours that an account has free are not taken off.
    #[serde(skip_serializing_if = "is_zero")]
    pub hosted_code_seconds: u64,
}

impl Usage {
    /// Adds another's figures to these.
    pub fn add(&mut self, other: &Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cache_read_tokens = self.cache_read_tokens.saturating_add(other.cache_read_tokens);
        self.cache_write_tokens = self.cache_write_tokens.saturating_add(other.cache_write_tokens);
        self.hosted_code_seconds = self.hosted_code_seconds.saturating_add(other.hosted_code_seconds);
        if let Some(more) = other.reasoning_tokens {
            self.reasoning_tokens = Some(self.reasoning_tokens.unwrap_or(0).saturating_add(more));
        }
    }

    /// Tokens read and written.
    pub fn total_tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

/// A duration in a record: milliseconds with microsecond decimals.
mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_micros() as f64 / 1000.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(deserializer)? / 1000.0;
        Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_false(value: &bool) -> bool {
    !value
}

/// The versions of a document before and after a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateVersions {
    /// The document's name.
    pub document: String,
    /// The version that the call saw, or whose change its own was added to.
    pub before: u64,
    /// The version that it made; the same if it changed nothing.
    pub after: u64,
}

/// What is kept of one call, wherever it was made and wherever it ran.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallRecord {
    /// The version of this format.
    pub v: u8,
    /// The call.
    pub id: CallId,
    /// The call that it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<CallId>,
    /// The tool's name.
    pub tool: Arc<str>,
    /// Where the tool comes from, such as `local`.
    pub source: Arc<str>,
    /// Who called.
    pub caller: Caller,
    /// The run or conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ScopeId>,
    /// The arguments, secrets masked; absent when they were too large to keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Arc<Value>>,
    /// How it ended.
    pub status: Status,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ToolError>,
    /// The causes of the error, outermost first. Never sent to a model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// How many bytes of text the model got.
    pub content_bytes: usize,
    /// Whether there was a value for the application only.
    #[serde(default, skip_serializing_if = "is_false")]
    pub payload: bool,
    /// Files that were made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// When it was made.
    pub started: Timestamp,
    /// From then to the answer, in milliseconds.
    #[serde(rename = "duration_ms", with = "milliseconds")]
    pub duration: Duration,
    /// Of that, the wait for permits, in milliseconds.
    #[serde(rename = "queue_wait_ms", with = "milliseconds")]
    pub queue_wait: Duration,
    /// How often the tool was run.
    pub attempts: u32,
    /// Whether the answer came from the cache.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cached: bool,
    /// Whether the answer was made up by mock mode.
    #[serde(default, skip_serializing_if = "is_false")]
    pub mock: bool,
    /// Whether a blocking tool still ran when its caller was told.
    #[serde(default, skip_serializing_if = "is_false")]
    pub still_running: bool,
    /// Progress and log lines that found no room.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_notices: u64,
    /// The documents that the call has seen or changed, and their versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub state: Vec<StateVersions>,
    /// What the sandbox measured and enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Value>,
    /// What a model that the tool used has consumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// What that cost in US dollars; absent is unknown, never nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Facts that the caller gave along.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// The calls that were made from it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Arc<CallRecord>>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl CallRecord {
    /// A record of a call that has just begun; the rest is filled in as it goes.
    pub fn begin(call: &crate::Call, tool: Arc<str>, source: Arc<str>, started: Timestamp) -> Self {
        Self {
            v: VERSION,
            id: call.id,
            parent: call.parent,
            tool,
            source,
            caller: call.caller.clone(),
            scope: call.scope.as_ref().map(crate::Scope::id),
            arguments: None,
            status: Status::Error,
            error: None,
            causes: Vec::new(),
            content_bytes: 0,
            payload: false,
            artifacts: Vec::new(),
            started,
            duration: Duration::ZERO,
            queue_wait: Duration::ZERO,
            attempts: 0,
            cached: false,
            mock: false,
            still_running: false,
            dropped_notices: 0,
            state: Vec::new(),
            sandbox: None,
            usage: None,
            cost_usd: None,
            metadata: call.options.metadata.clone(),
            children: Vec::new(),
        }
    }
}

/// What is kept of one run of an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunRecord {
    /// The version of this format.
    pub v: u8,
    /// The run.
    pub id: RunId,
    /// The run that it was made from, by an agent that is a tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunId>,
    /// The model that answered, such as `anthropic/claude-opus-5`.
    pub model: String,
    /// Whether the run reached an answer.
    pub success: bool,
    /// Why it stopped, such as `end_turn` or `max_iterations`.
    pub stop_reason: String,
    /// The answer. Of a run that ended without one, what was said last.
    pub response: String,
    /// Whether the response sums up what a run has done that came to a limit.
    #[serde(default, skip_serializing_if = "is_false")]
    pub wrapped_up: bool,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Value>,
    /// When it began.
    pub started: Timestamp,
    /// How long it took, in milliseconds.
    #[serde(default)]
    pub duration_ms: f64,
    /// The same in seconds, as the seed systems have it.
    pub execution_time: f64,
    /// How often the model was asked.
    pub iterations: u32,
    /// The names of the tools that were called, each once, in order of first use.
    pub tools_used: Vec<String>,
    /// Every call.
    pub tool_calls: Vec<Arc<CallRecord>>,
    /// What the model consumed.
    pub usage: Usage,
    /// What it cost in US dollars, where somebody says so; absent is unknown, never nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// The runs that were made from it: of agents that were its tools, or that had the conversation before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Arc<RunRecord>>,
    /// The container that it ran in, if it ran in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// Files that were made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// What the run's owner should know, such as that the model's words are scripted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
}

impl RunRecord {
    /// A record of a run that has just begun; the rest is filled in as it goes.
    pub fn begin(id: RunId, model: String, started: Timestamp) -> Self {
        Self {
            v: VERSION,
            id,
            parent: None,
            model,
            success: false,
            stop_reason: String::new(),
            response: String::new(),
            wrapped_up: false,
            error: None,
            started,
            duration_ms: 0.0,
            execution_time: 0.0,
            iterations: 0,
            tools_used: Vec::new(),
            tool_calls: Vec::new(),
            usage: Usage::default(),
            cost_usd: None,
            children: Vec::new(),
            container_id: None,
            artifacts: Vec::new(),
            notices: Vec::new(),
        }
    }

    /// Sets how long it took.
    pub fn set_duration(&mut self, duration: Duration) {
        self.duration_ms = duration.as_micros() as f64 / 1000.0;
        self.execution_time = duration.as_secs_f64();
    }
}
