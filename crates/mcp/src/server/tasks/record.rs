//! The stored record of a task, and its MCP form.

use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{DetailedTask, InputRequests, JsonObject, Task, TaskPayload, TaskStatus};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use toolpost_core::{Clock as _, Output, SystemClock, Timestamp, ToolError};

use crate::convert::{ERROR, outward};
use crate::server::Principal;
use crate::server::handler::missing_capability;
use crate::server::port::Abilities;

/// The stored record of a task. Until the end it has only what a restart needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::server) struct TaskBody {
    /// The key of the client, which owns the task.
    pub(super) owner: Option<String>,
    /// The name of the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) client: Option<String>,
    pub(super) tool: String,
    pub(super) created: Timestamp,
    pub(super) updated: Timestamp,
    /// The status message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) end: Option<TaskEnd>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) rerun: Option<Rerun>,
}

/// The end of a task.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::server) enum TaskEnd {
    /// The tool returned a result or an error.
    Completed(JsonObject),
    /// The call did not complete.
    Failed(JsonObject),
    Cancelled,
}

/// The needs of a rerun after a restart; only for rerunnable tools.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::server) struct Rerun {
    pub(in crate::server) arguments: Value,
    pub(super) elicitation: bool,
    pub(super) sampling: bool,
    pub(super) roots: bool,
    /// The number of runs so far.
    pub(super) runs: u32,
}

impl Rerun {
    pub(in crate::server) fn new(arguments: Value, abilities: Abilities) -> Self {
        let Abilities { elicitation, sampling, roots, .. } = abilities;
        Self { arguments, elicitation, sampling, roots, runs: 1 }
    }

    pub(super) fn abilities(&self) -> Abilities {
        let Self { elicitation, sampling, roots, .. } = *self;
        Abilities { elicitation, sampling, roots, progress: true, log: None }
    }
}

impl TaskEnd {
    /// The end of a completed call.
    pub(super) fn from_result(result: Result<Output, ToolError>) -> Self {
        let answer = match result {
            Ok(output) => outward::result(output, None, false),
            Err(error) => match missing_capability(&error) {
                Some(missing) => return Self::failed(&missing),
                None => outward::failure(&error, false),
            },
        };
        Self::Completed(object(&answer))
    }

    pub(super) fn failed(error: &ErrorData) -> Self {
        Self::Failed(object(error))
    }

    /// The end of an interrupted call.
    pub(super) fn interrupted(error: &ToolError) -> Self {
        Self::failed(&ErrorData::internal_error(error.to_string(), Some(json!({ (ERROR): error }))))
    }
}

pub(super) fn now() -> Timestamp {
    SystemClock.timestamp()
}

/// Serializes an MCP value to its fields.
fn object(value: &impl Serialize) -> JsonObject {
    match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

impl TaskBody {
    /// The record of a call that begins now.
    pub(in crate::server) fn new(principal: &Principal, tool: &str, rerun: Option<Rerun>) -> Self {
        let created = now();
        Self {
            owner: principal.key().map(str::to_owned),
            client: principal.name().map(str::to_owned),
            tool: tool.to_owned(),
            created,
            updated: created,
            message: None,
            end: None,
            rerun,
        }
    }

    /// The record as JSON, and its size in bytes.
    pub(super) fn stored(&self) -> (Value, usize) {
        let body = serde_json::to_value(self).unwrap_or_default();
        let bytes = body.to_string().len();
        (body, bytes)
    }

    /// The task in MCP form.
    pub(super) fn task(&self, id: &str, until: Timestamp, poll: Duration) -> Task {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let mut task = Task::new(id, TaskStatus::Working, self.created.to_string(), self.updated.to_string());
        task.status_message.clone_from(&self.message);
        let lifetime = until.as_micros().saturating_sub(self.created.as_micros());
        task.ttl_ms = Some((lifetime / 1_000).max(1));
        task.poll_interval_ms = Some(millis(poll).max(1));
        task
    }

    /// The task with its open questions or its result.
    pub(super) fn detail(
        &self,
        id: &str,
        until: Timestamp,
        poll: Duration,
        open: InputRequests,
    ) -> DetailedTask {
        let payload = match &self.end {
            None if open.is_empty() => TaskPayload::Working,
            None => TaskPayload::InputRequired { input_requests: open },
            Some(TaskEnd::Completed(result)) => TaskPayload::Completed { result: result.clone() },
            Some(TaskEnd::Failed(error)) => TaskPayload::Failed { error: error.clone() },
            Some(TaskEnd::Cancelled) => TaskPayload::Cancelled,
        };
        DetailedTask::new(self.task(id, until, poll), payload)
    }
}
