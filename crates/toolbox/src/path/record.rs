//! The record of a call. It is written even if the call is dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use toolpost_core::{Call, CallRecord, Code, Event, Evidence, Output, Reply, Status, Timestamp, ToolError};

use super::check::{Secrets, masked};
use super::host::CallHost;
use super::limit::{self, text_size};
use crate::registry::Entry;
use crate::shared::Shared;

/// The maximum size of arguments in a record, in bytes of JSON.
const MAX_KEPT_ARGUMENTS: usize = 64 * 1024;

/// Writes one record. A drop before [`finish`](Self::finish) records a cancelled call.
///
/// The record is created at the end; until then only its facts are collected.
pub(super) struct Recorder<'a> {
    toolbox: &'a Shared,
    call: Arc<Call>,
    begun: Instant,
    started: Timestamp,
    /// The tool, once it is resolved.
    entry: Option<Arc<Entry>>,
    secrets: Secrets,
    /// The masked arguments.
    arguments: Option<Arc<Value>>,
    queue_wait: Duration,
    cached: bool,
    host: Option<Arc<CallHost>>,
    /// The size of the text for the model, if measured.
    content_bytes: Option<usize>,
    /// After the end of the call, whether a thread still ran the tool.
    still_running: Option<bool>,
    is_written: bool,
}

impl<'a> Recorder<'a> {
    pub(super) fn begin(toolbox: &'a Shared, call: &Arc<Call>) -> Self {
        let clock = &toolbox.config.clock;
        Self {
            toolbox,
            call: Arc::clone(call),
            begun: clock.instant(),
            started: clock.timestamp(),
            entry: None,
            secrets: Secrets::default(),
            arguments: None,
            queue_wait: Duration::ZERO,
            cached: false,
            host: None,
            content_bytes: None,
            still_running: None,
            is_written: false,
        }
    }

    /// Replaces the call, after an alias was resolved.
    pub(super) fn renamed(&mut self, call: &Arc<Call>) {
        if !Arc::ptr_eq(&self.call, call) {
            self.call = Arc::clone(call);
        }
    }

    /// Sets the tool, and masks the arguments.
    pub(super) fn resolved(&mut self, entry: &Arc<Entry>, size: usize, secrets: &Secrets) {
        let call = &self.call;
        if size <= MAX_KEPT_ARGUMENTS {
            self.arguments = Some(if secrets.is_none() {
                Arc::clone(&call.arguments)
            } else {
                Arc::new(masked(entry, &call.arguments, secrets.all()))
            });
        }
        emit(self.toolbox, &self.call, || Event::CallStarted {
            call: call.id,
            parent: call.parent,
            tool: Arc::clone(&entry.name),
            arguments: self.arguments.clone().unwrap_or_default(),
        });
        self.secrets = secrets.clone();
        self.entry = Some(Arc::clone(entry));
    }

    /// Sets the time in the queue.
    pub(super) fn queued(&mut self, wait: Duration) {
        self.queue_wait = wait;
    }

    /// Sets the size of the text for the model, in bytes.
    pub(super) fn measured(&mut self, content_bytes: usize) {
        self.content_bytes = Some(content_bytes);
    }

    pub(super) fn cached(&mut self) {
        self.cached = true;
    }

    /// Sets the host, whose facts become part of the record.
    pub(super) fn watch(&mut self, host: &Arc<CallHost>) {
        self.host = Some(Arc::clone(host));
    }

    /// Ends the call. No commit starts afterwards, and the record waits for running commits.
    pub(super) async fn settle(&mut self) {
        let Some(host) = &self.host else { return };
        let still_running = host.close();
        if host.is_committing() {
            Box::pin(host.commits_ended()).await;
        }
        self.still_running = Some(still_running && host.is_running());
    }

    pub(super) fn finish(&mut self, mut result: Result<Output, ToolError>) -> Reply {
        if let Err(error) = result {
            result = Err(self.secrets.without(limit::error(error, self.toolbox.settings().output_limit)));
        }
        let record = self.write(&result);
        Reply { result, record }
    }

    /// The record without the result. The name of an unknown tool is truncated.
    fn record(&self) -> CallRecord {
        let (tool, source) = match &self.entry {
            Some(entry) => (Arc::clone(&entry.name), Arc::clone(&entry.source_name)),
            None => {
                let asked: String = self.call.tool.chars().take(64).collect();
                (asked.into(), Arc::clone(&self.toolbox.config.name))
            }
        };
        let mut record = CallRecord::begin(&self.call, tool, source, self.started);
        record.arguments.clone_from(&self.arguments);
        record.queue_wait = self.queue_wait;
        record.cached = self.cached;
        record.mock = self.call.options.mock && self.entry.is_some();
        record
    }

    fn write(&mut self, result: &Result<Output, ToolError>) -> Arc<CallRecord> {
        self.is_written = true;
        let mut record = self.record();
        if let Some(host) = self.host.take() {
            record.still_running = self.still_running.unwrap_or_else(|| host.close());
            record.attempts = host.attempts();
            (record.children, record.artifacts) = host.take_trail();
            record.dropped_notices = host.dropped_notices();
            record.state = host.take_versions();
        }
        record.duration = self.toolbox.config.clock.instant().saturating_duration_since(self.begun);
        match result {
            Ok(output) => {
                record.status = output.status();
                record.content_bytes = self.content_bytes.unwrap_or_else(|| text_size(output));
                record.payload = output.payload.is_some();
                record
                    .artifacts
                    .extend(output.artifacts.iter().map(|artifact| artifact.clone().without_data()));
                if let Some(Evidence { sandbox, usage, cost_usd }) = output.evidence.as_deref() {
                    record.sandbox.clone_from(sandbox);
                    record.usage.clone_from(usage);
                    record.cost_usd = *cost_usd;
                }
            }
            Err(error) => {
                record.status = Status::Error;
                record.causes = error.causes();
                for cause in &mut record.causes {
                    *cause = self.secrets.scrubbed(std::mem::take(cause));
                }
                record.error = Some(error.clone());
                if error.code() == Code::Internal {
                    tracing::error!(target: "toolpost::call", call = %record.id, tool = %record.tool, causes = ?record.causes, "{}", error.message());
                } else {
                    tracing::debug!(target: "toolpost::call", call = %record.id, tool = %record.tool, "{error}");
                }
            }
        }
        let record = Arc::new(record);
        if let Some(entry) = &self.entry {
            entry.counters.count(&record);
        }
        self.toolbox.records.push(Arc::clone(&record));
        if let Some(sink) = &self.toolbox.config.records {
            undisturbed(|| sink(&record));
        }
        emit(self.toolbox, &self.call, || Event::CallFinished { record: Arc::clone(&record) });
        record
    }
}

impl Drop for Recorder<'_> {
    fn drop(&mut self) {
        if self.is_written {
            return;
        }
        let dropped = || Err(ToolError::cancelled("the caller dropped the call before its end"));
        match self.host.clone().filter(|host| host.is_committing()) {
            None => drop(self.write(&dropped())),
            // The record waits for a running commit.
            Some(host) => {
                self.is_written = true;
                host.close();
                let (toolbox, call) = (Arc::clone(&host.toolbox), Arc::clone(&self.call));
                let (begun, started, queue_wait, cached) =
                    (self.begun, self.started, self.queue_wait, self.cached);
                let (entry, secrets) = (self.entry.take(), std::mem::take(&mut self.secrets));
                let (arguments, content_bytes) = (self.arguments.take(), self.content_bytes);
                let of_host = Arc::clone(&host);
                host.after_commits(move || {
                    let mut recorder = Recorder {
                        toolbox: &toolbox,
                        call,
                        begun,
                        started,
                        entry,
                        secrets,
                        arguments,
                        queue_wait,
                        cached,
                        host: Some(of_host),
                        content_bytes,
                        still_running: None,
                        is_written: false,
                    };
                    recorder.write(&dropped());
                });
            }
        }
    }
}

/// Passes an event to the sinks of the toolbox and of the call.
pub(super) fn emit(toolbox: &Shared, call: &Call, event: impl FnOnce() -> Event) {
    let mut sinks = toolbox.config.events.iter().chain(&call.events).peekable();
    if sinks.peek().is_some() {
        undisturbed(|| {
            let event = event();
            sinks.for_each(|sink| sink(&event));
        });
    }
}

/// Runs code of the application. A panic is logged, and the call continues.
fn undisturbed(code: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(code)).is_err() {
        tracing::error!("a sink of events or records panicked");
    }
}

/// The reply to a call that does not start.
pub(super) fn refuse(toolbox: &Shared, call: &Arc<Call>, error: ToolError) -> Reply {
    Recorder::begin(toolbox, call).finish(Err(error))
}
