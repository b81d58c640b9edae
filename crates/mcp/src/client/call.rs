//! One call: the request, input rounds, tasks and retries.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CancelTaskParams, ClientRequest, CreateTaskResult,
    GetPromptRequest, GetPromptRequestParams, GetTaskParams, GetTaskRequest, GetTaskResult,
    InputRequiredResult, InputResponses, ReadResourceRequest, ReadResourceRequestParams, RequestMetaObject,
    TaskPayload, UpdateTaskParams, UpdateTaskRequest,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use toolpost_core::{
    Call, Code, LogLevel, Output, Progress, RetryAdvice, Timeout, ToolError, ToolSpec, did_you_mean,
    format_duration,
};

use super::answer::Responder;
use super::catalog::Bound;
use super::connection::Connection;
use super::failure::Failure;
use super::flight::Flight;
use super::response::error_data;
use super::settings::LOG_LEVEL;
use super::{Client, backoff, is_transient};
use crate::convert::inward::{self, Notes};
use crate::convert::protocol_level;

/// The shortest and the longest poll interval of a task, and the default.
const POLL_RANGE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(10));
const DEFAULT_POLL: Duration = Duration::from_millis(500);
/// The most input rounds of one call.
const MAX_ROUNDS: usize = 20;
/// The most attempts of a call that may be repeated, and of a connection for it.
const MAX_ATTEMPTS: u32 = 5;
/// The wait before a round without questions.
const EMPTY_ROUND_DELAY: Duration = Duration::from_millis(50);
/// The trace context keys that a call passes to the server.
const TRACE_KEYS: [&str; 3] = ["traceparent", "tracestate", "baggage"];

/// A result, what its text lost, and the connection that it came through.
struct Answer {
    connection: Arc<Connection>,
    result: Value,
    notes: Notes,
}

impl Answer {
    /// Whether the result is of this type.
    fn is(&self, kind: &str) -> bool {
        self.result.get("resultType").is_some_and(|found| found == kind)
    }
}

/// A way to send a request.
struct Dispatch {
    flight: Arc<Flight>,
    meta: RequestMetaObject,
    /// Whether the request may run twice.
    may_repeat: bool,
}

impl Dispatch {
    fn responder(&self) -> Responder {
        Responder(Some(Arc::clone(&self.flight)))
    }
}

impl Client {
    /// Runs a call of a tool.
    pub(super) async fn run(&self, call: &Call, attempts: &mut u32) -> Result<Output, ToolError> {
        let bound = self.bound(&call.tool).await?;
        let mut arguments = match &*call.arguments {
            Value::Null => Map::new(),
            Value::Object(fields) => fields.clone(),
            _ => return Err(ToolError::invalid_input("the arguments: expected an object")),
        };
        drop_nulls(&mut arguments, &bound.spec);
        bound.spec.input_schema.check_hiding(&Value::Object(arguments.clone()), &[])?;
        if call.options.validate {
            return Ok(Output::json(json!({ "valid": true })));
        }
        if call.options.dry_run {
            return Ok(Output::json(
                json!({ "dry_run": true, "would_call": bound.original, "arguments": arguments }),
            ));
        }
        if call.options.mock {
            return Err(ToolError::precondition("tools of MCP servers cannot be mocked"));
        }
        let flight = Flight::new(call.id, Arc::clone(&call.port));
        let limit = self.limit(call, &bound);
        let work = self.call_tool(call, &bound, arguments, &flight, attempts);
        self.bounded(&bound.spec.name, &flight, limit, call, work).await
    }

    /// Bounds work by the time limit, the deadline and the cancellation of the call.
    async fn bounded<T>(
        &self,
        what: &str,
        flight: &Arc<Flight>,
        limit: Duration,
        call: &Call,
        work: impl Future<Output = Result<T, ToolError>>,
    ) -> Result<T, ToolError> {
        let late = |limit| ToolError::timeout(format!("`{what}` timed out after {}", format_duration(limit)));
        let deadline = async {
            match call.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        let begun = Instant::now();
        tokio::select! {
            result = work => result,
            () = call.cancellation.cancelled() => {
                Err(ToolError::cancelled(format!("the caller cancelled `{what}`")))
            }
            () = flight.expired(limit) => Err(late(limit)),
            () = deadline => Err(late(begun.elapsed())),
        }
    }

    /// The time limit of a call.
    fn limit(&self, call: &Call, bound: &Bound) -> Duration {
        let policy = match bound.spec.policy.timeout {
            Some(Timeout::After(limit)) => limit,
            _ => Duration::MAX,
        };
        self.settings.timeout.min(policy).min(call.options.timeout.unwrap_or(Duration::MAX))
    }

    /// The tool with this name.
    async fn bound(&self, name: &str) -> Result<Arc<Bound>, ToolError> {
        // An expired list is refreshed only when tools are listed.
        if self.changes.has_tools()
            && let Err(error) = self.refresh().await
        {
            // The call itself detects whether the server is gone.
            tracing::debug!(server = self.settings.name, %error, "listing tools failed; using the previous list");
        }
        let catalog = self.catalog();
        catalog.tool(name).map(Arc::clone).ok_or_else(|| {
            let names = catalog.tools.iter().map(|bound| bound.spec.name.as_str());
            ToolError::not_found(format!("the server `{}` has no tool `{name}`", self.settings.name))
                .suggest_maybe(did_you_mean(name, names))
        })
    }

    async fn call_tool(
        &self,
        call: &Call,
        bound: &Bound,
        arguments: Map<String, Value>,
        flight: &Arc<Flight>,
        attempts: &mut u32,
    ) -> Result<Output, ToolError> {
        // The semaphore is never closed.
        let _permit = self.calls.acquire().await;
        let name: Cow<'static, str> = bound.original.clone().into();
        let annotations = bound.spec.annotations;
        let dispatch = Dispatch {
            flight: Arc::clone(flight),
            meta: Self::meta(call),
            may_repeat: annotations.idempotent || annotations.read_only,
        };
        let request = |answers: &Round| {
            let mut params = CallToolRequestParams::new(name.clone()).with_arguments(arguments.clone());
            params.input_responses.clone_from(&answers.responses);
            params.request_state.clone_from(&answers.state);
            ClientRequest::CallToolRequest(CallToolRequest::new(params))
        };
        let answer = self.rounds(&dispatch, request, attempts).await?;
        if answer.is("task") {
            let task: CreateTaskResult = self.typed(&answer.result, "task")?;
            return self.task(&answer.connection, task, &dispatch).await;
        }
        inward::result(answer.result, answer.notes, &self.settings.name)
    }

    /// Reads a resource; the tool of the call is the URI.
    pub(super) async fn read_for(&self, call: &Call) -> Result<Output, ToolError> {
        let uri = call.tool.as_str();
        let request = |answers: &Round| {
            let mut params = ReadResourceRequestParams::new(uri);
            params.input_responses.clone_from(&answers.responses);
            params.request_state.clone_from(&answers.state);
            ClientRequest::ReadResourceRequest(ReadResourceRequest::new(params))
        };
        let (result, notes) = self.read_only(call, request).await?;
        inward::read(result, notes, uri, &self.settings.name)
    }

    /// Renders a prompt; the tool of the call is its name. Prompt arguments are strings in MCP: other values
    /// are sent as JSON.
    pub(super) async fn render_for(&self, call: &Call) -> Result<Output, ToolError> {
        let name = call.tool.as_str();
        let none = Map::new();
        let arguments = call.arguments.as_object().unwrap_or(&none);
        let arguments: Map<String, Value> = arguments
            .iter()
            .map(|(key, value)| match value {
                Value::String(_) => (key.clone(), value.clone()),
                value => (key.clone(), value.to_string().into()),
            })
            .collect();
        let request = |answers: &Round| {
            let mut params = GetPromptRequestParams::new(name).with_arguments(arguments.clone());
            params.input_responses.clone_from(&answers.responses);
            params.request_state.clone_from(&answers.state);
            ClientRequest::GetPromptRequest(GetPromptRequest::new(params))
        };
        let (result, notes) = self.read_only(call, request).await?;
        inward::rendered(result, notes, &self.settings.name)
    }

    /// Sends a request without side effects.
    async fn read_only(
        &self,
        call: &Call,
        request: impl Fn(&Round) -> ClientRequest,
    ) -> Result<(Value, Notes), ToolError> {
        let flight = Flight::new(call.id, Arc::clone(&call.port));
        let dispatch = Dispatch { flight: Arc::clone(&flight), meta: Self::meta(call), may_repeat: true };
        let mut attempts = 0;
        let work = async {
            let answer = self.rounds(&dispatch, request, &mut attempts).await?;
            Ok((answer.result, answer.notes))
        };
        let limit = self.settings.timeout.min(call.options.timeout.unwrap_or(Duration::MAX));
        self.bounded(&call.tool, &flight, limit, call, work).await
    }

    fn unexpected(&self) -> ToolError {
        ToolError::dependency(format!(
            "the server `{}` returned an unexpected result type",
            self.settings.name
        ))
    }

    /// A result of a type that the protocol alone uses.
    fn typed<T: DeserializeOwned>(&self, result: &Value, what: &str) -> Result<T, ToolError> {
        let quote = || inward::shortened(&result.to_string(), 300);
        T::deserialize(result).map_err(|error| {
            ToolError::dependency(format!(
                "the server `{}` returned an invalid {what} ({error}): {}",
                self.settings.name,
                quote()
            ))
        })
    }

    /// The `_meta` of a call.
    fn meta(call: &Call) -> RequestMetaObject {
        let mut meta = RequestMetaObject::new();
        let level = if call.options.verbose { LogLevel::Debug } else { LOG_LEVEL };
        meta.set_log_level(protocol_level(level));
        for key in TRACE_KEYS {
            if let Some(value) = call.options.metadata.get(key).filter(|value| value.is_string()) {
                meta.insert(key.to_owned(), value.clone());
            }
        }
        meta
    }

    /// Sends a request and answers the server's input requests until it returns a result.
    async fn rounds(
        &self,
        dispatch: &Dispatch,
        request: impl Fn(&Round) -> ClientRequest,
        attempts: &mut u32,
    ) -> Result<Answer, ToolError> {
        let mut round = Round::default();
        for _ in 0..MAX_ROUNDS {
            let answer = self.exchange(dispatch, || request(&round), attempts).await?;
            if !answer.is("input_required") {
                return Ok(answer);
            }
            let required: InputRequiredResult = self.typed(&answer.result, "request for input")?;
            round = self.next_round(required, dispatch).await?;
        }
        Err(ToolError::limit(format!(
            "the server `{}` requested input more than {MAX_ROUNDS} times for one call",
            self.settings.name
        )))
    }

    async fn next_round(
        &self,
        required: InputRequiredResult,
        dispatch: &Dispatch,
    ) -> Result<Round, ToolError> {
        let questions = required.input_requests.unwrap_or_default();
        if questions.is_empty() {
            if required.request_state.is_none() {
                return Err(self.unexpected());
            }
            tokio::time::sleep(EMPTY_ROUND_DELAY).await;
        }
        let responses = dispatch.responder().answer_all(questions).await?;
        Ok(Round { responses: (!responses.is_empty()).then_some(responses), state: required.request_state })
    }

    /// Sends a request until it is answered; resends it if it certainly did not arrive or may run twice.
    async fn exchange(
        &self,
        dispatch: &Dispatch,
        request: impl Fn() -> ClientRequest,
        attempts: &mut u32,
    ) -> Result<Answer, ToolError> {
        for attempt in 1..=MAX_ATTEMPTS {
            let wait = backoff(attempt);
            let is_last = attempt == MAX_ATTEMPTS;
            let connection = match self.connection().await {
                Ok(connection) => connection,
                Err(error) if is_last || !is_transient(&error) => {
                    return Err(if is_transient(&error) {
                        error.retry(RetryAdvice::NotStarted(wait))
                    } else {
                        error
                    });
                }
                Err(_) => {
                    tokio::time::sleep(wait).await;
                    continue;
                }
            };
            *attempts += 1;
            let flight = &dispatch.flight;
            let error =
                match Box::pin(connection.request(request(), Some(flight), dispatch.meta.clone())).await {
                    Ok((result, notes)) => return Ok(Answer { connection, result, notes }),
                    Err(Failure::Answered(error)) => return Err(error),
                    Err(Failure::Lost(error)) => error,
                };
            // Over HTTP a restarted server may be another version.
            self.changes.tools();
            if connection.is_closed() {
                self.discard(&connection).await;
            }
            let is_unsent = flight.is_unsent();
            if is_last || !(is_unsent || dispatch.may_repeat) {
                return Err(if is_unsent {
                    error.retry(RetryAdvice::NotStarted(wait))
                } else {
                    ToolError::new(Code::Dependency, format!("{}; the call may have run", error.message()))
                        .retry(RetryAdvice::Never)
                        .suggest("Check whether the call had an effect before you repeat it.")
                });
            }
            tokio::time::sleep(wait).await;
        }
        Err(self.unexpected())
    }

    /// Polls a task until it is done.
    async fn task(
        &self,
        connection: &Arc<Connection>,
        created: CreateTaskResult,
        dispatch: &Dispatch,
    ) -> Result<Output, ToolError> {
        let id = created.task.task_id;
        let mut guard = TaskGuard { connection: Arc::clone(connection), id: Some(id.clone()) };
        let mut interval = created.task.poll_interval_ms;
        let dispatch = Dispatch {
            flight: Arc::clone(&dispatch.flight),
            meta: RequestMetaObject::new(),
            may_repeat: true,
        };
        let mut reported = created.task.status_message;
        let mut answered: InputResponses = InputResponses::new();
        loop {
            let (shortest, longest) = POLL_RANGE;
            let wait = interval.map_or(DEFAULT_POLL, Duration::from_millis).clamp(shortest, longest);
            tokio::time::sleep(wait).await;
            let request =
                || ClientRequest::GetTaskRequest(GetTaskRequest::new(GetTaskParams::new(id.as_str())));
            let mut attempts = 0;
            let answer = self.exchange(&dispatch, request, &mut attempts).await?;
            guard.connection = answer.connection;
            let task = self.typed::<GetTaskResult>(&answer.result, "task")?.task;
            if let Some(message) = &task.task.status_message
                && reported.as_ref() != Some(message)
            {
                let message = inward::shortened(message, 8_000);
                let flight = &dispatch.flight;
                flight.port.progress(flight.call, Progress { message, percent: None, attempt: 1 });
                reported.clone_from(&task.task.status_message);
            }
            interval = task.task.poll_interval_ms.or(interval);
            match task.payload {
                TaskPayload::Working => {}
                TaskPayload::InputRequired { input_requests } => {
                    // Answered questions may stay listed until the server has processed the answer.
                    let open =
                        input_requests.into_iter().filter(|(key, _)| !answered.contains_key(key)).collect();
                    let responses = dispatch.responder().answer_all(open).await?;
                    if !responses.is_empty() {
                        answered.extend(responses.clone());
                        let update = || {
                            let params = UpdateTaskParams::new(id.as_str(), responses.clone());
                            ClientRequest::UpdateTaskRequest(UpdateTaskRequest::new(params))
                        };
                        self.exchange(&dispatch, update, &mut attempts).await?;
                    }
                }
                TaskPayload::Completed { result } => {
                    guard.id = None;
                    return inward::result(Value::Object(result), answer.notes, &self.settings.name);
                }
                TaskPayload::Failed { error } => {
                    guard.id = None;
                    let error = error_data(Value::Object(error));
                    return Err(inward::error(&error, &self.settings.name));
                }
                TaskPayload::Cancelled => {
                    guard.id = None;
                    return Err(ToolError::cancelled(format!(
                        "the server `{}` cancelled the task",
                        self.settings.name
                    )));
                }
                _ => return Err(self.unexpected()),
            }
        }
    }
}

/// Drops nulls for optional parameters that do not accept null.
fn drop_nulls(arguments: &mut Map<String, Value>, spec: &ToolSpec) {
    if !arguments.values().any(Value::is_null) {
        return;
    }
    let schema = spec.input_schema.as_value();
    let accepts_null =
        |name: &str| match schema.get("properties").and_then(|known| known.get(name)?.get("type")) {
            Some(Value::String(kind)) => kind == "null",
            Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "null"),
            _ => true,
        };
    let is_required = |name: &str| spec.input_schema.required().any(|required| required == name);
    arguments.retain(|name, value| !value.is_null() || is_required(name) || accepts_null(name));
}

/// The answers that the next request of the same call carries.
#[derive(Default)]
struct Round {
    responses: Option<InputResponses>,
    state: Option<String>,
}

/// Cancels a task when its caller goes away.
struct TaskGuard {
    connection: Arc<Connection>,
    id: Option<String>,
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let connection = Arc::clone(&self.connection);
        runtime.spawn(async move { connection.cancel_task(CancelTaskParams::new(id)).await });
    }
}
