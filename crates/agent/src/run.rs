//! One run of an agent: the loop.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::json;
use toolpost_core::{
    Call, CallId, CallOptions, Caller, Cancellation, Clock, Event, NoPort, Payload, Port, Reply, RunId,
    RunRecord, Scope, SystemClock, ToolError, Values,
};
use toolpost_llm::{
    ErrorKind, ModelError, ModelEvent, Request, Response, StopReason as ModelStop, ToolResult, Turn,
};
use toolpost_toolbox::ToolSession;

use crate::agent::Parts;
use crate::dynamic::Offer;
use crate::port::ModelPort;
use crate::results::{Wanted, failure, result, usage_of, wanted};
use crate::{Agent, StopReason};

/// How many notices a record keeps: a hostile provider must not fill the memory with them.
const MAX_NOTICES: usize = 64;
/// How much of a notice is kept and passed on, in characters.
const MAX_NOTICE: usize = 1000;
/// How long all sources of tools may take to say what they have now; a toolbox gives up on a single one before.
const LIST_TIMEOUT: Duration = Duration::from_secs(15);

/// One run, before it has begun: who it is for and how it is stopped.
#[must_use = "a run does nothing until `finish`"]
pub struct Run {
    agent: Agent,
    id: RunId,
    turns: Vec<Turn>,
    caller: Caller,
    scope: Scope,
    port: Arc<dyn Port>,
    values: Values,
    cancellation: Cancellation,
    options: CallOptions,
    parent: Option<(CallId, u8)>,
    notices: Vec<String>,
    tool_session: Option<ToolSession>,
}

/// What a run came to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// Why it ended.
    pub stop: StopReason,
    /// Everything that is kept of it.
    pub record: Arc<RunRecord>,
    /// The conversation, every tool call with its result.
    pub turns: Vec<Turn>,
    /// Why the model failed, when it did.
    pub error: Option<ModelError>,
    /// What the conversation has loaded, if its agent loads tools: for the run that goes on from it.
    pub tool_session: Option<ToolSession>,
    /// What tools had for the application only, in the order of the model's calls.
    pub payloads: Vec<CallPayload>,
}

/// What a tool had for the application only.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallPayload {
    /// The call that it came with.
    pub call: CallId,
    /// The tool's name.
    pub tool: Arc<str>,
    /// The value.
    pub payload: Payload,
}

impl Outcome {
    /// The answer.
    pub fn text(&self) -> &str {
        &self.record.response
    }
}

/// The runtime's time, so that a test can stop it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Waits until then; for ever without a then.
async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

impl Run {
    /// A run that begins with a prompt.
    pub fn new(agent: &Agent, prompt: impl Into<String>) -> Self {
        Self::from_turns(agent, vec![Turn::user(prompt)])
    }

    /// A run that goes on from a conversation.
    pub fn from_turns(agent: &Agent, turns: Vec<Turn>) -> Self {
        Self {
            agent: agent.clone(),
            id: RunId::new(),
            turns,
            caller: Caller::new("agent"),
            scope: Scope::new("agent"),
            port: Arc::new(NoPort),
            values: Values::default(),
            cancellation: Cancellation::new(),
            options: CallOptions::default(),
            parent: None,
            notices: Vec::new(),
            tool_session: None,
        }
    }

    /// Its name.
    pub fn id(&self) -> RunId {
        self.id
    }

    /// Gives it the name that somebody has reserved for it already.
    pub fn with_id(mut self, id: RunId) -> Self {
        self.id = id;
        self
    }

    /// Says for whom it calls tools.
    pub fn with_caller(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }

    /// Says what its calls belong to, and where they work.
    pub fn with_scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// Says who takes files and answers questions.
    pub fn with_port(mut self, port: Arc<dyn Port>) -> Self {
        self.port = port;
        self
    }

    /// Injects values into the tools that it calls.
    pub fn with_values(mut self, values: Values) -> Self {
        self.values = values;
        self
    }

    /// Says how it is stopped.
    pub fn with_cancellation(mut self, cancellation: Cancellation) -> Self {
        self.cancellation = cancellation;
        self
    }

    /// Says what its calls ask for beyond their arguments, such as a sandbox level. Default: nothing.
    pub fn with_options(mut self, options: CallOptions) -> Self {
        self.options = options;
        self
    }

    /// Says that the run is made from within a call, at this depth: its own calls are nested in that one, and count
    /// towards the toolbox's limit of nesting. Default: they are nested in none.
    pub fn with_parent(mut self, call: CallId, depth: u8) -> Self {
        self.parent = Some((call, depth));
        self
    }

    /// Goes on with the tools that a conversation has loaded, and keeps there what it loads. Default: the agent's
    /// session, or a new one. Without effect where the agent offers all tools.
    pub fn with_tool_session(mut self, session: ToolSession) -> Self {
        self.tool_session = Some(session);
        self
    }

    /// Adds something that its record shall say. At most 64 notices are kept.
    pub fn with_notice(mut self, notice: impl Into<String>) -> Self {
        self.notices.push(notice.into());
        self
    }

    /// Runs until there is an answer or a limit. To stop it, use its cancellation: then the record is whole.
    pub async fn finish(self) -> Outcome {
        let agent = self.agent.clone();
        let parts = &*agent.0;
        let begun = now();
        let mut record = RunRecord::begin(self.id, parts.model.id().to_string(), SystemClock.timestamp());
        for notice in self.notices {
            remember(&mut record.notices, shortened(&notice));
        }
        let mut running = Running {
            parts,
            request: Request {
                system: parts.system.clone(),
                turns: self.turns,
                settings: parts.settings.clone(),
                provider_options: parts.provider_options.clone(),
                ..Request::default()
            },
            offer: Offer::new(&parts.toolbox, &parts.offering, &self.port),
            tool_session: self.tool_session,
            port: Arc::new(ModelPort::new(self.port, Arc::clone(&parts.model))),
            caller: self.caller,
            scope: self.scope,
            values: self.values,
            cancellation: self.cancellation,
            options: self.options,
            parent: self.parent,
            goes_on: false,
            payloads: Vec::new(),
            deadline: parts.limits.time.and_then(|time| begun.checked_add(time)),
            record,
        };
        let (stop, error) = match running.work().await {
            Ok(stop) | Err(Interrupted::Stop(stop)) => (stop, None),
            Err(Interrupted::Model(error)) => {
                let stop = match error.kind {
                    ErrorKind::Refused => StopReason::Refusal,
                    ErrorKind::ContextTooLong => StopReason::ContextWindow,
                    _ => StopReason::ModelError,
                };
                (stop, Some(*error))
            }
        };
        let Running { mut record, request, port, offer, payloads, .. } = running;
        record.usage.add(&port.take_usage());
        record.usage.add(&offer.take_usage());
        record.success = stop.is_answer();
        stop.as_str().clone_into(&mut record.stop_reason);
        record.execution_time = now().saturating_duration_since(begun).as_secs_f64();
        record.error = error
            .as_ref()
            .map(|error| json!({ "kind": error.kind.as_str(), "message": error.to_string(), "hint": error.hint() }));
        let record = Arc::new(record);
        if let Some(sink) = &parts.events {
            sink(&Event::RunFinished { record: Arc::clone(&record) });
        }
        Outcome { stop, record, turns: request.turns, error, tool_session: offer.into_session(), payloads }
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("id", &self.id).field("agent", &self.agent).finish_non_exhaustive()
    }
}

/// What ends a run other than the model's own word.
enum Interrupted {
    Stop(StopReason),
    Model(Box<ModelError>),
}

impl From<StopReason> for Interrupted {
    fn from(stop: StopReason) -> Self {
        Self::Stop(stop)
    }
}

impl From<ModelError> for Interrupted {
    fn from(error: ModelError) -> Self {
        Self::Model(Box::new(error))
    }
}

/// A run while it runs.
struct Running<'a> {
    parts: &'a Parts,
    request: Request,
    offer: Offer<'a>,
    /// What the offer begins with.
    tool_session: Option<ToolSession>,
    port: Arc<ModelPort>,
    caller: Caller,
    scope: Scope,
    values: Values,
    cancellation: Cancellation,
    options: CallOptions,
    parent: Option<(CallId, u8)>,
    /// Whether the next answer goes on where a pause was made.
    goes_on: bool,
    payloads: Vec<CallPayload>,
    deadline: Option<Instant>,
    record: RunRecord,
}

impl Running<'_> {
    /// The loop: ask, call, tell, ask again.
    async fn work(&mut self) -> Result<StopReason, Interrupted> {
        let listed = self.list_tools().await;
        self.emit(|running| Event::RunStarted {
            run: running.record.id,
            model: running.record.model.clone(),
            tools: running.request.tools.iter().map(|tool| tool.name.clone()).collect(),
        });
        listed?;
        self.parts.model.check(&self.request)?;
        loop {
            if self.record.iterations >= self.parts.limits.iterations {
                return Ok(StopReason::MaxIterations);
            }
            let response = self.ask().await?;
            let wanted = wanted(&response);
            self.keep(&response);
            // Only text can be gone on with: what was said before an empty pause belongs to an earlier answer.
            let has_begun = self.goes_on || !response.text().is_empty();
            self.goes_on = has_begun && wanted.is_empty() && response.stop == ModelStop::Pause;
            let out_of_tokens =
                self.parts.limits.tokens.is_some_and(|limit| self.record.usage.total_tokens() >= limit);
            let (results, interrupted) = match after(&response.stop) {
                Some(stop) if wanted.is_empty() => return Ok(stop),
                // The calls of an answer that was cut off or declined are not what the model meant to ask for.
                Some(stop) if stop != StopReason::EndTurn => {
                    let reason = format!("the answer that asked for it was not whole ({stop})");
                    (refuse_all(&wanted, &reason), Some(stop))
                }
                _ if out_of_tokens => {
                    (refuse_all(&wanted, &at_limit(&StopReason::MaxTokens)), Some(StopReason::MaxTokens))
                }
                // The provider wants to be asked again to go on.
                None if wanted.is_empty() => continue,
                _ => self.call_tools(wanted).await,
            };
            if !results.is_empty() {
                self.request.turns.push(Turn::ToolResults(results));
            }
            if let Some(tools) = self.offer.changed() {
                self.request.tools = tools;
            }
            self.record.usage.add(&self.port.take_usage());
            self.record.usage.add(&self.offer.take_usage());
            if let Some(stop) = interrupted {
                return Ok(stop);
            }
        }
    }

    /// Asks what tools there are now. Sources that do not answer are no reason to stop: what was known is offered.
    async fn list_tools(&mut self) -> Result<(), Interrupted> {
        let listed = tokio::select! {
            biased;
            () = self.cancellation.cancelled() => return Err(StopReason::Cancelled.into()),
            () = sleep_until(self.deadline) => return Err(StopReason::MaxTime.into()),
            listed = tokio::time::timeout(LIST_TIMEOUT, self.offer.list()) => match listed {
                Ok(listed) => listed.map_err(|error| error.public(CallId::new()).to_string()),
                Err(_) => Err("the sources did not say in 15 s what they have".to_owned()),
            },
        };
        let listed =
            listed.inspect_err(|reason| self.note(&format!("the list of tools may be old: {reason}")));
        let (tools, notices) = self.offer.begin(listed.ok(), self.tool_session.take());
        self.request.tools = tools;
        for notice in notices {
            self.note(&notice);
        }
        Ok(())
    }

    /// Asks the model and passes on what it says while it says it.
    async fn ask(&mut self) -> Result<Response, Interrupted> {
        self.record.iterations += 1;
        self.emit(|running| Event::TurnStarted {
            run: running.record.id,
            iteration: running.record.iterations,
        });
        let mut stream = self.parts.model.stream(&self.request);
        let mut cancelled = self.cancellation.cancelled();
        let mut over = pin!(sleep_until(self.deadline));
        loop {
            // A stream that always has something must not keep the runtime from telling the time.
            tokio::task::consume_budget().await;
            let event = tokio::select! {
                biased;
                () = &mut cancelled => return Err(StopReason::Cancelled.into()),
                () = &mut over => return Err(StopReason::MaxTime.into()),
                event = stream.next() => event,
            };
            let run = self.record.id;
            match event {
                Some(Ok(ModelEvent::Done(response))) => return Ok(*response),
                Some(Ok(ModelEvent::TextDelta { text, .. })) => self.emit(|_| Event::TextDelta { run, text }),
                Some(Ok(ModelEvent::ThinkingDelta { text, .. })) => {
                    self.emit(|_| Event::ThinkingDelta { run, text });
                }
                Some(Ok(ModelEvent::Notice(message))) => self.note(&message),
                Some(Ok(ModelEvent::Retrying { attempt, after, reason })) => self.note(&format!(
                    "attempt {attempt} to reach the model failed ({reason}); the next is in {}",
                    toolpost_core::format_duration(after)
                )),
                Some(Ok(ModelEvent::Restarted)) => {
                    self.note("the provider began its answer anew; what it said before is void");
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
                None => {
                    let error = ModelError::new(ErrorKind::Protocol, "the stream ended without an answer");
                    return Err(error.with_model(self.parts.model.id()).into());
                }
            }
        }
    }

    /// Adds the answer to the conversation and the record.
    fn keep(&mut self, response: &Response) {
        let usage = usage_of(&response.usage);
        self.record.usage.add(&usage);
        self.emit(|running| Event::TurnFinished {
            run: running.record.id,
            iteration: running.record.iterations,
            stop_reason: response.stop.as_str().to_owned(),
            usage,
        });
        let text = response.text();
        if self.goes_on {
            self.record.response.push_str(&text);
        } else if !text.is_empty() {
            self.record.response = text;
        }
        for notice in &response.notices {
            self.note(notice);
        }
        self.request.push_response(response);
    }

    /// Calls the tools that the model asked for, some at a time; the results are in the order of the calls.
    async fn call_tools(&mut self, wanted: Vec<Wanted>) -> (Vec<ToolResult>, Option<StopReason>) {
        let made = self.record.tool_calls.len();
        let allowed = match self.parts.limits.tool_calls {
            Some(limit) => (limit as usize).saturating_sub(made).min(wanted.len()),
            None => wanted.len(),
        };
        let (made_now, never) = wanted.split_at(allowed);
        let replies = self.replies_to(made_now).await;
        let mut results = Vec::with_capacity(wanted.len());
        for (wanted, reply) in made_now.iter().zip(replies) {
            results.push(result(wanted, &reply));
            let (record, call) = (&mut self.record, reply.record);
            if let Some(payload) = reply.result.ok().and_then(|output| output.payload) {
                self.payloads.push(CallPayload { call: call.id, tool: Arc::clone(&call.tool), payload });
            }
            // What a model makes up is no tool, and its name may be of any length.
            let exists = call.attempts > 0 || self.offer.has_tool(&call.tool);
            if exists && !record.tools_used.iter().any(|known| **known == *call.tool) {
                record.tools_used.push(call.tool.to_string());
            }
            record.artifacts.extend(call.artifacts.iter().cloned());
            record.tool_calls.push(call);
        }
        results.extend(refuse_all(never, &at_limit(&StopReason::MaxToolCalls)));
        let stop = if self.cancellation.is_cancelled() {
            Some(StopReason::Cancelled)
        } else if self.deadline.is_some_and(|deadline| deadline <= now()) {
            Some(StopReason::MaxTime)
        } else if never.is_empty() {
            None
        } else {
            Some(StopReason::MaxToolCalls)
        };
        (results, stop)
    }

    /// Makes calls, some at a time. The replies are in the order of the calls.
    async fn replies_to(&self, calls: &[Wanted]) -> Vec<Reply> {
        let offer = &self.offer;
        // Nearly always there is one, and that needs no crowd.
        if let [only] = calls {
            return vec![offer.call(self.call_of(only)).await];
        }
        let calls: Vec<_> =
            (0_usize..).zip(calls).map(|(index, wanted)| (index, self.call_of(wanted))).collect();
        let calls = calls.into_iter().map(|(index, call)| async move { (index, offer.call(call).await) });
        let at_once = self.parts.limits.parallel_tools.max(1);
        // Unordered, so that a slow call holds no other back.
        let mut replies: Vec<_> = stream::iter(calls).buffer_unordered(at_once).collect().await;
        replies.sort_unstable_by_key(|(index, _)| *index);
        replies.into_iter().map(|(_, reply)| reply).collect()
    }

    fn call_of(&self, wanted: &Wanted) -> Call {
        let mut call = Call::new(wanted.name.clone(), Arc::clone(&wanted.arguments))
            .with_caller(self.caller.clone())
            .with_scope(self.scope.clone())
            .with_port(Arc::clone(&self.port) as Arc<dyn Port>)
            .with_cancellation(self.cancellation.clone());
        call.deadline = self.deadline;
        call.values = self.values.clone();
        call.options = self.options.clone();
        if let Some((parent, depth)) = self.parent {
            call.parent = Some(parent);
            call.depth = depth.saturating_add(1);
        }
        call
    }

    fn note(&mut self, message: &str) {
        let message = shortened(message);
        self.emit(|_| Event::Notice { message: message.clone() });
        remember(&mut self.record.notices, message);
    }

    fn emit(&self, event: impl FnOnce(&Self) -> Event) {
        if let Some(sink) = &self.parts.events {
            sink(&event(self));
        }
    }
}

/// Why a call is not made when the run is at a limit.
fn at_limit(stop: &StopReason) -> String {
    format!("the run has reached its limit ({stop})")
}

/// Results for calls that are not made, so that the conversation stays whole.
fn refuse_all(wanted: &[Wanted], reason: &str) -> Vec<ToolResult> {
    let error = ToolError::limit(format!("the call was not made: {reason}"));
    wanted.iter().map(|wanted| failure(wanted, &error, CallId::new())).collect()
}

/// The beginning of a notice.
fn shortened(message: &str) -> String {
    match message.char_indices().nth(MAX_NOTICE) {
        Some((end, _)) => format!("{}…", message.get(..end).unwrap_or_default()),
        None => message.to_owned(),
    }
}

/// Keeps a notice once; the last that finds room says that there were more.
fn remember(notices: &mut Vec<String>, message: String) {
    if notices.len() < MAX_NOTICES && !notices.contains(&message) {
        let is_last = notices.len() + 1 == MAX_NOTICES;
        notices.push(if is_last {
            "there were further notices, which are not kept".to_owned()
        } else {
            message
        });
    }
}

/// What the model's own reason to stop means for a run without open tool calls; `None` if it wants to go on.
fn after(stop: &ModelStop) -> Option<StopReason> {
    Some(match stop {
        // A model that says "tool use" and calls none has nothing more to say.
        ModelStop::EndTurn | ModelStop::ToolUse => StopReason::EndTurn,
        ModelStop::StopSequence => StopReason::StopSequence,
        ModelStop::MaxTokens => StopReason::OutputTokens,
        ModelStop::Refusal => StopReason::Refusal,
        ModelStop::ContextWindow => StopReason::ContextWindow,
        ModelStop::Pause => return None,
        other => StopReason::Other(other.as_str().to_owned()),
    })
}
