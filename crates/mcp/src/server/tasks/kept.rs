//! What is kept of a task, and how a client reads it.

use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{DetailedTask, InputRequests, JsonObject, Task, TaskPayload, TaskStatus};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use toolpost_core::{Output, Timestamp, ToolError};

use crate::convert::outward;
use crate::server::handler::missing_capability;
use crate::server::port::Abilities;

/// What is kept of a task; until it has ended, only what a restarted server needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    /// Whom it belongs to, when clients are authenticated.
    pub(super) owner: Option<String>,
    pub(super) tool: String,
    pub(super) created: Timestamp,
    pub(super) updated: Timestamp,
    /// A sentence for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ended: Option<Ended>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) again: Option<Again>,
}

/// How a task ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::server) enum Ended {
    /// The tool answered, also with an error.
    Completed(JsonObject),
    /// There is no answer of the tool.
    Failed(JsonObject),
    Cancelled,
}

/// What it takes to run a call again after the server was killed; there only if the tool takes no harm.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::server) struct Again {
    pub(in crate::server) arguments: Value,
    pub(super) elicitation: bool,
    pub(super) sampling: bool,
    pub(super) roots: bool,
    /// How often it was begun.
    pub(super) runs: u32,
}

impl Again {
    pub(in crate::server) fn new(arguments: Value, abilities: Abilities) -> Self {
        let Abilities { elicitation, sampling, roots, .. } = abilities;
        Self { arguments, elicitation, sampling, roots, runs: 1 }
    }

    pub(super) fn abilities(&self) -> Abilities {
        let Self { elicitation, sampling, roots, .. } = *self;
        Abilities { elicitation, sampling, roots, progress: true, log: None }
    }
}

impl Ended {
    /// What became of the call.
    pub(super) fn of(result: Result<Output, ToolError>) -> Self {
        let answer = match result {
            Ok(output) => outward::result(output, false),
            Err(error) => match missing_capability(&error) {
                Some(missing) => return Self::failed(&missing),
                None => outward::failure(&error),
            },
        };
        Self::Completed(object(&answer))
    }

    pub(super) fn failed(error: &ErrorData) -> Self {
        Self::Failed(object(error))
    }

    /// It did not end by itself.
    pub(super) fn broken_off(error: &ToolError) -> Self {
        Self::failed(&ErrorData::internal_error(error.to_string(), Some(json!({ (outward::ERROR): error }))))
    }
}

/// An answer of the protocol as its fields.
fn object(value: &impl Serialize) -> JsonObject {
    match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

impl Kept {
    /// The task as its creator is told of it.
    pub(super) fn task(&self, id: &str, until: Timestamp, poll: Duration) -> Task {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let mut task = Task::new(id, TaskStatus::Working, self.created.to_string(), self.updated.to_string());
        task.status_message.clone_from(&self.message);
        let lives = until.as_micros().saturating_sub(self.created.as_micros());
        task.ttl_ms = Some((lives / 1_000).max(1));
        task.poll_interval_ms = Some(millis(poll).max(1));
        task
    }

    /// The task as it is now, with what it waits for.
    pub(super) fn detail(
        &self,
        id: &str,
        until: Timestamp,
        poll: Duration,
        open: InputRequests,
    ) -> DetailedTask {
        let payload = match &self.ended {
            None if open.is_empty() => TaskPayload::Working,
            None => TaskPayload::InputRequired { input_requests: open },
            Some(Ended::Completed(result)) => TaskPayload::Completed { result: result.clone() },
            Some(Ended::Failed(error)) => TaskPayload::Failed { error: error.clone() },
            Some(Ended::Cancelled) => TaskPayload::Cancelled,
        };
        DetailedTask::new(self.task(id, until, poll), payload)
    }
}
