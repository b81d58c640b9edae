//! Messages of clients, runs and workers, as JSON.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_core::{CallLimit, Priority, Timestamp, ToolError, Truncation};
use toolpost_flow::driver::ValuePlace;
use toolpost_flow::{FlowEvent, RunStatus};

/// The name of the workflow.
pub(crate) const WORKFLOW: &str = "ToolpostFlow";
/// The version of these messages, which is that of the events of a run.
pub(crate) const VERSION: u8 = FlowEvent::FORMAT;

/// The name of the service of a pool.
pub(crate) fn pool_service(pool: &str) -> String {
    format!("ToolpostPool.{pool}")
}

/// The start of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) v: u8,
    /// The plan as data, with its sub-flows.
    pub(crate) plan: Value,
    /// The checked inputs.
    pub(crate) input: Value,
    /// The maximum number of calls in flight.
    pub(crate) max_parallel: usize,
    /// Whether workers check that what the plan uses of an output is whole. False for runs of earlier versions, so that a
    /// replay gives the same calls.
    #[serde(default)]
    pub(crate) checks_outputs: bool,
    /// Whether the index of runs has the run. False for runs of earlier versions, and for workers that serve no index.
    #[serde(default)]
    pub(crate) is_listed: bool,
}

/// The end of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) status: RunStatus,
    pub(crate) output: Arc<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<ToolError>,
    /// The parts of the output that a limit truncated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) truncated: Vec<Truncation>,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
}

/// An attempt of a step, for a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Attempt {
    pub(crate) v: u8,
    pub(crate) step: String,
    pub(crate) tool: String,
    pub(crate) arguments: Arc<Value>,
    /// The arguments that come from expressions, and must not run as code. Version 1 has none.
    #[serde(default, skip_serializing_if = "has_none")]
    pub(crate) values: Arc<[ValuePlace]>,
    pub(crate) is_program: bool,
    /// The parts of the output that the plan uses as data, which must be whole.
    #[serde(default, skip_serializing_if = "has_none")]
    pub(crate) uses: Arc<[String]>,
    /// The limit in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_ms: Option<u64>,
    /// The longest time without progress, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) heartbeat_ms: Option<u64>,
    /// A limit that the call shares with others of the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<Arc<CallLimit>>,
    pub(crate) priority: Priority,
    /// The idempotency key for the tool.
    pub(crate) key: String,
}

fn has_none<T>(values: &Arc<[T]>) -> bool {
    values.is_empty()
}

/// A duration in milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The end of an attempt.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AttemptEnd {
    /// The time at the worker.
    pub(crate) at: Timestamp,
    pub(crate) event: FlowEvent,
}

/// A message of a client to a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) at: Timestamp,
    pub(crate) event: FlowEvent,
    /// The awakeable that gets whether the run takes the message. Messages of earlier versions have none, and are taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reply: Option<String>,
}

/// The events of a run, for a reader.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Page {
    pub(crate) events: Vec<(Timestamp, FlowEvent)>,
    /// The number of batches read so far.
    pub(crate) next: u64,
}
