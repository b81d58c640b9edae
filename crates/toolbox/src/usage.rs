//! How often each tool is used.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use toolpost_core::{CallRecord, Status};

/// How often a tool was used since its toolbox was made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToolUsage {
    /// The tool.
    pub tool: String,
    /// Calls.
    pub calls: u64,
    /// Of those, the ones that failed.
    pub errors: u64,
    /// Of those, the ones that were answered from the cache.
    pub cached: u64,
    /// Attempts beyond the first.
    pub retries: u64,
    /// The time that they took together, in milliseconds.
    pub total_ms: f64,
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
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.errors.fetch_add(u64::from(record.status == Status::Error), Ordering::Relaxed);
        self.cached.fetch_add(u64::from(record.cached), Ordering::Relaxed);
        self.retries.fetch_add(u64::from(record.attempts.saturating_sub(1)), Ordering::Relaxed);
        self.micros.fetch_add(record.duration.as_micros() as u64, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, tool: &str) -> ToolUsage {
        ToolUsage {
            tool: tool.to_owned(),
            calls: self.calls.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            cached: self.cached.load(Ordering::Relaxed),
            retries: self.retries.load(Ordering::Relaxed),
            total_ms: Duration::from_micros(self.micros.load(Ordering::Relaxed)).as_secs_f64() * 1000.0,
        }
    }
}
