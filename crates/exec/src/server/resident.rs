//! Resident mode: many calls over one process.

mod port;

use std::borrow::Cow;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use toolpost_core::{
    Call, CallId, Caller, Cancellation, Code, Output, Reply, Scope, ToolError, ToolSource, ToolSpec,
};

use self::port::FramePort;
use super::oneshot::{explained, flatten_dry_run};
use super::outlet::Outlet;
use super::reserved::Reserved;
use super::{Server, status};
use crate::protocol::dialect::PROTOCOL;
use crate::protocol::frame::{BadFrame, CallFacts, CallerFrame, CallerMessage, ToolFrame, ToolMessage};
use crate::protocol::line::{Line, MAX_LINE};
use crate::protocol::outcome::{Answered, OutputFrame};

/// Maximum number of concurrent requests. A toolbox has a smaller queue of its own.
const MAX_REQUESTS: usize = 4096;
/// The time that running calls may take to stop after the end of the input.
const GRACE: Duration = Duration::from_secs(1);
/// Maximum length of a front or an identity, in characters.
const MAX_NAME: usize = 256;
/// Maximum time to a deadline.
const MAX_DEADLINE: Duration = Duration::from_hours(24 * 365);

/// Pending questions, by call and number.
type Questions = HashMap<(u64, u64), oneshot::Sender<Answered<Value>>>;

/// The state that all requests share.
struct Resident {
    source: Arc<dyn ToolSource>,
    output: Outlet,
    errors: Outlet,
    running: Mutex<HashMap<u64, Cancellation>>,
    questions: Mutex<Questions>,
    next_question: AtomicU64,
    specs: Mutex<Specs>,
}

/// The specs at a generation of the source.
#[derive(Default)]
struct Specs {
    generation: Option<u64>,
    by_name: HashMap<String, Arc<ToolSpec>>,
}

/// Locks a table, which a panic cannot leave half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves until the end of the input.
pub(super) async fn serve(server: &Server) -> u8 {
    let resident = Arc::new(Resident {
        source: Arc::clone(&server.source),
        output: server.output.clone(),
        errors: server.errors.clone(),
        running: Mutex::default(),
        questions: Mutex::default(),
        next_question: AtomicU64::new(1),
        specs: Mutex::default(),
    });
    let hello = ToolMessage::Hello {
        name: server.program.name.clone(),
        version: server.program.version.clone(),
        protocol: PROTOCOL.to_owned(),
    };
    resident.send(0, hello).await;
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            line = server.input.line() => match line {
                Some(Line::Whole(line)) if line.trim_ascii().is_empty() => {}
                Some(Line::Whole(line)) => resident.take(server, &line, &mut tasks).await,
                Some(Line::TooLong { start }) => resident.too_long(&start).await,
                None => break,
            },
            Some(_ended) = tasks.join_next(), if !tasks.is_empty() => {}
            () = server.output.closed() => break,
        }
    }
    for cancellation in lock(&resident.running).values() {
        cancellation.cancel();
    }
    // Pending questions fail.
    lock(&resident.questions).clear();
    let _ = tokio::time::timeout(GRACE, async { while tasks.join_next().await.is_some() {} }).await;
    status::OK
}

/// Removes a request from the table when its task ends.
struct RunningRequest {
    resident: Arc<Resident>,
    id: u64,
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        lock(&self.resident.running).remove(&self.id);
    }
}

impl Resident {
    /// Writes a frame, waiting for space. False if the stream is closed.
    async fn send(&self, id: u64, message: ToolMessage) -> bool {
        match ToolFrame::new(id, message).to_line() {
            Ok(line) if line.len() <= MAX_LINE => self.output.send(line).await,
            Ok(line) => self.failure(id, &too_large(line.len())).await,
            Err(error) => self.failure(id, &error).await,
        }
    }

    /// Ends a request with an error.
    async fn failure(&self, id: u64, error: &ToolError) -> bool {
        let message = ToolMessage::Result { outcome: Answered::Error(error.clone()), record: None };
        match ToolFrame::new(id, message).to_line() {
            Ok(line) => self.output.send(line).await,
            Err(_) => false,
        }
    }

    async fn problem(&self, error: ToolError) {
        self.send(0, ToolMessage::Problem { error }).await;
    }

    /// Handles an invalid line: fails the request that it names, if any.
    async fn bad(&self, bad: BadFrame) {
        match bad.id {
            // A running request keeps running.
            Some(id) if id != 0 && !lock(&self.running).contains_key(&id) => {
                self.failure(id, &bad.error).await;
            }
            _ => self.problem(bad.error).await,
        }
    }

    async fn too_long(&self, start: &[u8]) {
        let text = String::from_utf8_lossy(start);
        let id = text.split_once("\"id\":").and_then(|(_, rest)| {
            let rest = rest.trim_start();
            let end = rest.find(|digit: char| !digit.is_ascii_digit())?;
            rest.get(..end)?.parse().ok()
        });
        let error = ToolError::invalid_input("the line is longer than 32 MiB")
            .suggest("Write large data to a file and pass its path.");
        self.bad(BadFrame { id, error }).await;
    }

    async fn take(self: &Arc<Self>, server: &Server, line: &[u8], tasks: &mut JoinSet<()>) {
        let CallerFrame { id, message, .. } = match CallerFrame::read(line) {
            Ok(frame) => frame,
            Err(bad) => return self.bad(bad).await,
        };
        match message {
            CallerMessage::Cancel => {
                let cancellation = lock(&self.running).get(&id).cloned();
                if let Some(cancellation) = cancellation {
                    cancellation.cancel();
                }
            }
            CallerMessage::Answer { request, answer } => {
                // An answer without a pending question is late.
                let waiting = lock(&self.questions).remove(&(id, request));
                if let Some(waiting) = waiting {
                    let _ = waiting.send(answer);
                }
            }
            CallerMessage::Call { tool, arguments, facts } => {
                let Some((entry, cancellation)) = self.enter(id).await else { return };
                let resident = Arc::clone(self);
                tasks.spawn(async move {
                    let entry = entry;
                    let call = resident.call(id, tool, arguments, *facts, cancellation);
                    // A panic in a source must not leave the caller waiting.
                    let result = AssertUnwindSafe(call).catch_unwind().await;
                    let message = result.unwrap_or_else(|_| ToolMessage::Result {
                        outcome: Answered::Error(ToolError::internal("the program failed internally")),
                        record: None,
                    });
                    // Free the id before the caller sees the answer.
                    drop(entry);
                    resident.send(id, message).await;
                });
            }
            CallerMessage::List => {
                let answer = match server.source.list().await {
                    Ok(specs) => server.discovery(&specs).await,
                    Err(error) => Err(error),
                };
                self.send(id, ToolMessage::Listed { answer: answer.into() }).await;
            }
            CallerMessage::Read { uri } => {
                let Some((entry, cancellation)) = self.enter(id).await else { return };
                let resident = Arc::clone(self);
                tasks.spawn(async move {
                    let source = Arc::clone(&resident.source);
                    entry.value(id, source.read_resource(&uri), cancellation).await;
                });
            }
            CallerMessage::Render { prompt, arguments } => {
                let Some((entry, cancellation)) = self.enter(id).await else { return };
                let resident = Arc::clone(self);
                tasks.spawn(async move {
                    let source = Arc::clone(&resident.source);
                    let arguments = arguments.as_object().cloned().unwrap_or_default();
                    entry.value(id, source.render_prompt(&prompt, &arguments), cancellation).await;
                });
            }
        }
    }

    /// Registers a request; `None` if it was rejected.
    async fn enter(self: &Arc<Self>, id: u64) -> Option<(RunningRequest, Cancellation)> {
        let registered = {
            let mut running = lock(&self.running);
            if id == 0 || running.contains_key(&id) {
                Err(None)
            } else if running.len() >= MAX_REQUESTS {
                Err(Some(ToolError::overloaded(format!("{MAX_REQUESTS} requests are already running"))))
            } else {
                let cancellation = Cancellation::new();
                running.insert(id, cancellation.clone());
                Ok(cancellation)
            }
        };
        match registered {
            Ok(cancellation) => {
                return Some((RunningRequest { resident: Arc::clone(self), id }, cancellation));
            }
            Err(Some(error)) => drop(self.failure(id, &error).await),
            Err(None) => {
                self.problem(ToolError::invalid_input(format!(
                    "the id {id} is 0 or belongs to a running request"
                )))
                .await;
            }
        }
        None
    }

    /// The current spec of a tool.
    async fn spec(&self, tool: &str) -> Result<Option<Arc<ToolSpec>>, ToolError> {
        let generation = self.source.generation();
        {
            let specs = lock(&self.specs);
            if specs.generation == Some(generation) {
                return Ok(specs.by_name.get(tool).cloned());
            }
        }
        let listed = self.source.list().await?;
        let by_name: HashMap<_, _> = listed.into_iter().map(|spec| (spec.name.clone(), spec)).collect();
        let found = by_name.get(tool).cloned();
        *lock(&self.specs) = Specs { generation: Some(generation), by_name };
        Ok(found)
    }

    async fn call(
        self: &Arc<Self>,
        id: u64,
        tool: String,
        arguments: Value,
        facts: CallFacts,
        cancellation: Cancellation,
    ) -> ToolMessage {
        let wants_record = facts.record;
        let arguments = if arguments.is_null() { Value::Object(serde_json::Map::new()) } else { arguments };
        let failed = |error: ToolError| ToolMessage::Result { outcome: Answered::Error(error), record: None };
        let spec = match self.spec(&tool).await {
            Ok(spec) => spec,
            Err(error) => return failed(error),
        };
        let reserved = match &spec {
            // The source rejects an unknown tool.
            None => Ok(Reserved::default()),
            Some(spec) => spec
                .input_schema
                .check_hiding(&arguments, &spec.sensitive)
                .and_then(|()| Reserved::new(spec, &arguments)),
        };
        let reserved = match reserved {
            Ok(reserved) => reserved,
            Err(error) => return failed(error),
        };
        let port = Arc::new(FramePort::new(Arc::clone(self), id, &facts.serves));
        let mut call = new_call(tool, arguments, facts).with_port(port).with_cancellation(cancellation);
        reserved.apply(&mut call.options);
        let call_id = call.id;
        let mut reply = self.source.call(call).await;
        if let (true, Some(spec)) = (reserved.dry_run, &spec) {
            flatten_dry_run(spec, &mut reply);
        }
        let Reply { result, record } = reply;
        if let Err(error) = &result
            && error.code() == Code::Internal
        {
            // The caller gets only the id; stderr explains the error to the program's author.
            self.errors.send(explained(call_id, error, &record.causes)).await;
        }
        let record = wants_record.then(|| serde_json::to_value(&*record).unwrap_or_default());
        let outcome = match result {
            Ok(output) => Answered::Ok(OutputFrame::from(&output)),
            Err(error) => Answered::Error(error.public(call_id)),
        };
        ToolMessage::Result { outcome, record }
    }
}

impl RunningRequest {
    /// Answers with the value of a resource or a prompt.
    async fn value(
        self,
        id: u64,
        value: impl Future<Output = Result<Output, ToolError>>,
        cancellation: Cancellation,
    ) {
        let result = tokio::select! {
            result = value => result.map(|output| output.result_value()),
            () = cancellation.cancelled() => Err(ToolError::cancelled("the caller cancelled the request")),
        };
        let resident = Arc::clone(&self.resident);
        drop(self);
        let result = match result {
            Err(error) if error.code() == Code::Internal => {
                let call = CallId::new();
                resident.errors.send(explained(call, &error, &error.causes())).await;
                Err(error.public(call))
            }
            result => result,
        };
        resident.send(id, ToolMessage::Value { answer: result.into() }).await;
    }
}

fn too_large(bytes: usize) -> ToolError {
    ToolError::limit(format!("the answer has {bytes} bytes of JSON; a line holds 32 MiB"))
        .suggest("Write large results to a file and return its path.")
}

fn truncate(text: &str) -> String {
    text.chars().take(MAX_NAME).collect()
}

/// The call of a frame. It can only tighten: approvals and values injected by type never come over a wire.
pub(crate) fn new_call(tool: String, arguments: Value, facts: CallFacts) -> Call {
    let mut call = Call::new(tool, arguments);
    if let Some(id) = facts.call.and_then(|text| text.parse().ok()) {
        call.id = id;
    }
    call.parent = facts.parent.and_then(|text| text.parse().ok());
    call.depth = facts.depth;
    call.caller = match facts.caller {
        None => Caller::new("exec"),
        Some(name) => Caller {
            front: Cow::Owned(truncate(&name.front)),
            identity: name.identity.map(|identity| truncate(&identity).into()),
            program: None,
        },
    };
    call.scope = facts
        .scope
        .and_then(|scope| Some(Scope::new(truncate(&scope.owner)).with_id(scope.id.parse().ok()?)));
    call.deadline = facts
        .deadline_ms
        .and_then(|left| Instant::now().checked_add(Duration::from_millis(left).min(MAX_DEADLINE)));
    call.idempotency_key = facts.idempotency_key;
    call.priority = facts.priority;
    let options = &mut call.options;
    options.timeout = facts.timeout_ms.map(Duration::from_millis);
    options.retries = facts.retries;
    options.no_cache = facts.no_cache;
    options.dry_run = facts.dry_run;
    options.validate = facts.validate;
    options.mock = facts.mock;
    options.verbose = facts.verbose;
    options.level = facts.level;
    options.working_dir = facts.working_dir.map(Into::into);
    options.metadata = facts.metadata;
    for (name, value) in facts.values {
        call.values.provide_named(name, value);
    }
    call
}
