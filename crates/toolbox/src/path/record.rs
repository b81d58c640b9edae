//! The record of a call: begun with it, finished with it, and written also when the call is dropped in the middle.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use toolpost_core::{Call, CallRecord, Code, Event, Evidence, Output, Reply, Secret, Status, ToolError};

use super::check::masked;
use super::host::CallHost;
use super::limit::{self, text_size};
use crate::registry::Entry;
use crate::toolbox::Shared;

/// Arguments above this size, as JSON, are not kept in records.
const MAX_KEPT_ARGUMENTS: usize = 64 * 1024;

/// The latest records.
pub(crate) struct Ring {
    records: VecDeque<Arc<CallRecord>>,
    limit: usize,
}

impl Ring {
    pub(crate) fn new(limit: usize) -> Self {
        Self { records: VecDeque::new(), limit }
    }

    fn push(&mut self, record: Arc<CallRecord>) {
        if self.limit == 0 {
            return;
        }
        if self.records.len() >= self.limit {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }

    pub(crate) fn to_vec(&self) -> Vec<Arc<CallRecord>> {
        self.records.iter().cloned().collect()
    }
}

/// Writes one record. Dropping it before [`finish`](Self::finish) writes that the call was given up.
pub(super) struct Recorder {
    toolbox: Arc<Shared>,
    entry: Option<Arc<Entry>>,
    host: Option<Arc<CallHost>>,
    secrets: Arc<[Secret]>,
    begun: Instant,
    record: Option<CallRecord>,
    /// The size of what a model gets, when it was measured already.
    content_bytes: Option<usize>,
}

impl Recorder {
    pub(super) fn begin(toolbox: &Arc<Shared>, call: &Call) -> Self {
        let clock = &toolbox.config.clock;
        // Both are set when the tool is known; until then they cost nothing.
        let unknown = Arc::clone(&toolbox.config.name);
        Self {
            toolbox: Arc::clone(toolbox),
            entry: None,
            host: None,
            secrets: Arc::default(),
            begun: clock.instant(),
            record: Some(CallRecord::begin(call, Arc::clone(&unknown), unknown, clock.timestamp())),
            content_bytes: None,
        }
    }

    /// There is no such tool: the record keeps the beginning of what was asked for.
    pub(super) fn unknown(&mut self, name: &str) {
        if let Some(record) = &mut self.record {
            record.tool = name.chars().take(64).collect::<String>().into();
        }
    }

    /// The tool is known, and with it what of the arguments may be kept.
    pub(super) fn resolved(&mut self, entry: &Arc<Entry>, call: &Call, size: usize, secrets: &Arc<[Secret]>) {
        self.secrets = Arc::clone(secrets);
        let Some(record) = &mut self.record else { return };
        record.tool = Arc::clone(&entry.name);
        record.source = Arc::clone(&entry.source_name);
        let arguments = || {
            if secrets.is_empty() && entry.spec.sensitive.is_empty() {
                Arc::clone(&call.arguments)
            } else {
                Arc::new(masked(entry, &call.arguments, secrets))
            }
        };
        if size <= MAX_KEPT_ARGUMENTS {
            record.arguments = Some(arguments());
        }
        let arguments = record.arguments.clone();
        emit(&self.toolbox, || Event::CallStarted {
            call: call.id,
            parent: call.parent,
            tool: Arc::clone(&entry.name),
            arguments: arguments.unwrap_or_default(),
        });
        record.mock = call.options.mock;
        self.entry = Some(Arc::clone(entry));
    }

    /// The call's turn has come, after this wait.
    pub(super) fn entered(&mut self, waited: Duration) {
        if let Some(record) = &mut self.record {
            record.queue_wait = waited;
        }
    }

    /// What a model gets has this many bytes.
    pub(super) fn measured(&mut self, content_bytes: usize) {
        self.content_bytes = Some(content_bytes);
    }

    pub(super) fn cached(&mut self) {
        if let Some(record) = &mut self.record {
            record.cached = true;
        }
    }

    /// From now on the record has to tell what this host has seen.
    pub(super) fn watch(&mut self, host: &Arc<CallHost>) {
        self.host = Some(Arc::clone(host));
    }

    pub(super) fn finish(mut self, result: Result<Output, ToolError>) -> Reply {
        if let Some(host) = &self.host {
            host.close();
        }
        let limit = self.toolbox.settings().output_limit;
        let result = result.map_err(|error| self.scrubbed(limit::error(error, limit)));
        // Taken once, here; `drop` finds nothing after that.
        let Some(record) = self.record.take() else { unreachable!("a record is finished once") };
        let record = self.write(record, &result);
        Reply { result, record }
    }

    /// An error without the sensitive values that came in: a tool may quote them.
    fn scrubbed(&self, error: ToolError) -> ToolError {
        if self.secrets.is_empty() {
            return error;
        }
        let scrub =
            |text: &str| self.secrets.iter().fold(text.to_owned(), |text, secret| secret.scrub(&text));
        error.shortened(scrub, usize::MAX)
    }

    fn write(&mut self, mut record: CallRecord, result: &Result<Output, ToolError>) -> Arc<CallRecord> {
        record.duration = self.toolbox.config.clock.instant().saturating_duration_since(self.begun);
        if let Some(host) = self.host.take() {
            record.attempts = host.attempts();
            record.children = host.take_children();
            record.artifacts = host.take_artifacts();
            record.dropped_notices = host.dropped_notices();
            record.still_running = host.is_running();
        }
        match result {
            Ok(output) => {
                record.status = output.status();
                record.content_bytes = self.content_bytes.unwrap_or_else(|| text_size(output));
                record.payload = output.payload.is_some();
                record
                    .artifacts
                    .extend(output.artifacts.iter().map(|artifact| artifact.clone().without_data()));
                if let Some(Evidence { sandbox, usage }) = output.evidence.as_deref() {
                    record.sandbox.clone_from(sandbox);
                    record.usage.clone_from(usage);
                }
            }
            Err(error) => {
                record.status = Status::Error;
                record.causes = error.causes();
                for cause in &mut record.causes {
                    for secret in self.secrets.iter() {
                        *cause = secret.scrub(cause);
                    }
                }
                record.error = Some(error.clone());
                if error.code() == Code::Internal {
                    tracing::error!(call = %record.id, tool = %record.tool, causes = ?record.causes, "{}", error.message());
                } else {
                    tracing::debug!(call = %record.id, tool = %record.tool, "{error}");
                }
            }
        }
        let record = Arc::new(record);
        if let Some(entry) = &self.entry {
            entry.counters.count(&record);
        }
        self.toolbox.ring.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&record));
        if let Some(sink) = &self.toolbox.config.records {
            undisturbed(|| sink(&record));
        }
        emit(&self.toolbox, || Event::CallFinished { record: Arc::clone(&record) });
        record
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let Some(record) = self.record.take() else { return };
        if let Some(host) = &self.host {
            host.close();
        }
        self.write(record, &Err(ToolError::cancelled("the caller went away before the call was done")));
    }
}

/// Tells the sink of events, if there is one.
pub(super) fn emit(toolbox: &Shared, event: impl FnOnce() -> Event) {
    if let Some(sink) = &toolbox.config.events {
        undisturbed(|| sink(&event()));
    }
}

/// Runs code of the application. If it panics, that is in the log, and the call goes on.
fn undisturbed(code: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(code)).is_err() {
        tracing::error!("a sink of events or records panicked");
    }
}

/// The reply to a call that is not even begun.
pub(super) fn refuse(toolbox: &Arc<Shared>, call: &Call, error: ToolError) -> Reply {
    let mut recorder = Recorder::begin(toolbox, call);
    recorder.unknown(&call.tool);
    recorder.finish(Err(error))
}
