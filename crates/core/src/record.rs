//! Records of calls and runs.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::values::is_default;
use crate::{Artifact, CallId, Caller, RunId, ScopeId, Status, Timestamp, ToolError};

/// The version of the record format.
const VERSION: u8 = 1;

/// Usage of a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Input tokens, cached ones included.
    pub input_tokens: u64,
    /// Output tokens, reasoning included.
    pub output_tokens: u64,
    /// Input tokens read from the provider's cache.
    pub cache_read_tokens: u64,
    /// Input tokens written to the provider's cache.
    pub cache_write_tokens: u64,
    /// Output tokens of reasoning, if the provider reports them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// Billed seconds of a provider's code containers, with the minimum charge of each.
    ///
    /// An estimate: the provider does not report it, and an account's free hours are not subtracted.
    #[serde(skip_serializing_if = "is_default")]
    pub hosted_code_seconds: u64,
}

impl Usage {
    /// Adds another usage to this one.
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

    /// Input and output tokens.
    pub fn total_tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

/// Serializes a duration as milliseconds with microsecond decimals.
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

/// Versions of a document before and after a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateVersions {
    /// The document's id.
    pub document: String,
    /// The version that the call read, or onto which its change was rebased.
    pub before: u64,
    /// The version that the call committed; the same if it changed nothing.
    pub after: u64,
}

/// The record of a call, whatever its front and its host.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallRecord {
    /// Version of this format.
    pub v: u8,
    /// The call.
    pub id: CallId,
    /// The parent call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<CallId>,
    /// The tool's name.
    pub tool: Arc<str>,
    /// The tool's source, such as `local`.
    pub source: Arc<str>,
    /// The caller.
    pub caller: Caller,
    /// The run or conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ScopeId>,
    /// The arguments, secrets masked; absent if they were too large to store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Arc<Value>>,
    /// The outcome of the tool. Its code or command may have failed all the same: [`verdict`](Self::verdict).
    pub status: Status,
    /// The error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ToolError>,
    /// The causes of the error, outermost first. Never sent to a model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// Bytes of text sent to the model.
    pub content_bytes: usize,
    /// Whether there was a value for the application only.
    #[serde(default, skip_serializing_if = "is_default")]
    pub payload: bool,
    /// Files that the call created.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// When the call was created.
    pub started: Timestamp,
    /// Duration until the answer, in milliseconds.
    #[serde(rename = "duration_ms", with = "milliseconds")]
    pub duration: Duration,
    /// Part of the duration spent waiting for permits, in milliseconds.
    #[serde(rename = "queue_wait_ms", with = "milliseconds")]
    pub queue_wait: Duration,
    /// Number of attempts.
    pub attempts: u32,
    /// Whether the answer came from the cache.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cached: bool,
    /// Whether the answer is a mock.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mock: bool,
    /// Whether a blocking tool still ran when the caller got the answer.
    #[serde(default, skip_serializing_if = "is_default")]
    pub still_running: bool,
    /// Number of dropped progress and log lines.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dropped_notices: u64,
    /// Documents that the call read or changed, and their versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub state: Vec<StateVersions>,
    /// Measurements and limits of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Value>,
    /// Usage of a model that the tool called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Cost of that model in US dollars; absent means unknown, not zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Facts that the caller attached.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// Nested calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Arc<CallRecord>>,
}

impl CallRecord {
    /// The version of the format of this record and of [`RunRecord`].
    pub const FORMAT: u8 = VERSION;

    /// The record of a call that starts now.
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

    /// The verdict on the call's code or command in a sandbox, such as `ok`, `exit` or `timeout`.
    pub fn verdict(&self) -> Option<&str> {
        self.sandbox.as_ref()?.get("verdict")?.get("kind")?.as_str()
    }
}

/// Changes of a run in directories of the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChangedFiles {
    /// Paths of new files and directories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub created: Vec<String>,
    /// Paths of changed files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// Paths of deleted files and directories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deleted: Vec<String>,
    /// Number of further changes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub more: usize,
    /// Id that undoes all of it; absent if some old versions were not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<String>,
    /// Ids of held changes, which were not applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<String>,
}

/// The record of a run of an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunRecord {
    /// Version of this format.
    pub v: u8,
    /// The run.
    pub id: RunId,
    /// The parent run, if an agent that is a tool started this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunId>,
    /// The model, such as `anthropic/claude-opus-5`.
    pub model: String,
    /// Whether the run finished with an answer.
    pub success: bool,
    /// The stop reason, such as `end_turn` or `max_iterations`.
    pub stop_reason: String,
    /// The answer; without one, the model's last text.
    pub response: String,
    /// Whether the response is a summary, written after the run reached a limit.
    #[serde(default, skip_serializing_if = "is_default")]
    pub wrapped_up: bool,
    /// The error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Value>,
    /// When the run started.
    pub started: Timestamp,
    /// Duration in milliseconds.
    #[serde(default)]
    pub duration_ms: f64,
    /// Duration in seconds, as in the seed systems.
    pub execution_time: f64,
    /// Number of model requests.
    pub iterations: u32,
    /// Names of the tools used, without duplicates, in order of first use.
    pub tools_used: Vec<String>,
    /// All calls.
    pub tool_calls: Vec<Arc<CallRecord>>,
    /// Usage of the model.
    pub usage: Usage,
    /// Cost in US dollars; absent means unknown, not zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Child runs: of agents that were tools, or that had the conversation before a handoff.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Arc<RunRecord>>,
    /// The container of the run, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// Files that the run created.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// Messages for the operator, such as that the model is scripted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
    /// Changes of the run in directories of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<ChangedFiles>,
}

impl RunRecord {
    /// The record of a run that starts now.
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
            changes: None,
        }
    }

    /// Sets the duration.
    pub fn set_duration(&mut self, duration: Duration) {
        self.duration_ms = duration.as_micros() as f64 / 1000.0;
        self.execution_time = duration.as_secs_f64();
    }
}
