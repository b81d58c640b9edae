//! The record of a run of a plan, for `toolpost runs`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use toolpost_agent::Runs;
use toolpost_core::{CallRecord, RunRecord, Timestamp};
use toolpost_flow::{FlowOutcome, FlowProgress};

use crate::config::Config;
use crate::env;
use crate::print::Printer;
use crate::store::{self, LazyStore};

/// The maximum number of calls in a record: the last ones.
const MAX_CALLS: usize = 1_000;
/// The model of the record, by which `runs stats` groups.
const MODEL: &str = "flow";

/// Collects the calls of a run while it continues.
#[derive(Clone)]
pub(super) struct Calls {
    started: Timestamp,
    calls: Arc<Mutex<VecDeque<Arc<CallRecord>>>>,
}

impl Calls {
    pub(super) fn new(started: Timestamp) -> Self {
        Self { started, calls: Arc::default() }
    }

    pub(super) fn take(&self, progress: &FlowProgress) {
        let FlowProgress::Called { record, .. } = progress else { return };
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if calls.len() == MAX_CALLS {
            calls.pop_front();
        }
        calls.push_back(Arc::clone(record));
    }

    /// Stores the record of the run that has ended.
    pub(super) async fn store(&self, name: &str, outcome: &FlowOutcome, config: &Config, printer: &Printer) {
        let Some(path) = store::path(config).ok().filter(|_| !config.settings.no_save) else { return };
        let calls = std::mem::take(&mut *self.calls.lock().unwrap_or_else(PoisonError::into_inner));
        let record = self.record(outcome, calls.into());
        let runs = Runs::new(Arc::new(LazyStore::new(path))).with_secrets(env::scrubber().clone());
        if let Err(error) = runs.add(&record, &format!("flow {name}"), None).await {
            printer.warn(&format!("the record of the run was not stored: {error}"));
        }
    }

    fn record(&self, outcome: &FlowOutcome, calls: Vec<Arc<CallRecord>>) -> RunRecord {
        let mut record = RunRecord::begin(outcome.id, MODEL.to_owned(), self.started);
        record.success = outcome.error.is_none();
        outcome.status.as_str().clone_into(&mut record.stop_reason);
        record.response = match &outcome.output {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        record.error =
            outcome.error.as_ref().map(|error| json!({ "code": error.code(), "message": error.message() }));
        record.set_duration(outcome.duration);
        for call in &calls {
            if !record.tools_used.iter().any(|tool| **tool == *call.tool) {
                record.tools_used.push(call.tool.to_string());
            }
        }
        record.tool_calls = calls;
        // Agents of steps are runs of their own, which have their costs.
        record.cost_usd = Some(0.0);
        record
    }
}
