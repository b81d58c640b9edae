//! Usage counters of tools.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use toolpost_core::{CallRecord, Status};

/// The usage of a tool since the start of its toolbox.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToolUsage {
    /// The name of the tool.
    pub tool: String,
    /// The number of calls.
    pub calls: u64,
    /// The number of failed calls.
    pub errors: u64,
    /// The number of calls with a cached result.
    pub cached: u64,
    /// The number of retries.
    pub retries: u64,
    /// The total time of all calls, in milliseconds.
    pub total_ms: f64,
    /// The share of successful calls, from 0 to 1; `None` before the first call.
    pub success_rate: Option<f64>,
    /// The average time of a call, in milliseconds; `None` before the first call.
    pub average_ms: Option<f64>,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    calls: AtomicU64,
    errors: AtomicU64,
    cached: AtomicU64,
    retries: AtomicU64,
    micros: AtomicU64,
}

impl Counters {
    pub(crate) fn count(&self, record: &CallRecord) {
        // An atomic add of 0 costs as much as one of 1.
        let add = |counter: &AtomicU64, number: u64| {
            if number > 0 {
                counter.fetch_add(number, Ordering::Relaxed);
            }
        };
        add(&self.calls, 1);
        add(&self.errors, u64::from(record.status == Status::Error));
        add(&self.cached, u64::from(record.cached));
        add(&self.retries, u64::from(record.attempts.saturating_sub(1)));
        add(&self.micros, record.duration.as_micros() as u64);
    }

    pub(crate) fn read(&self, tool: &str) -> ToolUsage {
        let (calls, errors) = (self.calls.load(Ordering::Relaxed), self.errors.load(Ordering::Relaxed));
        let total_ms = Duration::from_micros(self.micros.load(Ordering::Relaxed)).as_secs_f64() * 1000.0;
        let per_call = |sum: f64| (calls > 0).then(|| sum / calls as f64);
        ToolUsage {
            tool: tool.to_owned(),
            calls,
            errors,
            cached: self.cached.load(Ordering::Relaxed),
            retries: self.retries.load(Ordering::Relaxed),
            total_ms,
            success_rate: per_call(calls.saturating_sub(errors) as f64),
            average_ms: per_call(total_ms),
        }
    }
}
