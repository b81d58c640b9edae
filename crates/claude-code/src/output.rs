//! The output of a turn, built from the events of the program.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use toolpost_agent::RunStopReason;
use toolpost_core::{
    Call, CallRecord, Caller, Clock as _, Code, Event as RunEvent, RunRecord, Status, SystemClock, ToolError,
};

use super::error::{ClaudeCodeError, ClaudeCodeErrorKind as Kind, redact};
use super::event::{Block, Delta, Ended, Event, System, ToolResult};
use super::session::ClaudeCodeTurn;
use super::settings::Settings;
use super::tool_server::ToolServer;

/// Uses of tools of one turn.
const MAX_USES: usize = 10_000;
/// Unknown events of one turn.
const MAX_UNKNOWN: usize = 64;
/// Bytes of JSON of an unknown event.
const MAX_UNKNOWN_BYTES: usize = 16 << 10;
/// Bytes of JSON of the arguments in a record.
const MAX_ARGUMENTS: usize = 64 << 10;
/// Notices of a record.
const MAX_NOTICES: usize = 64;

/// The output of a turn.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClaudeCodeOutput {
    /// The reason why the turn ended.
    pub stop: RunStopReason,
    /// The record of the turn.
    ///
    /// Calls of connected toolboxes have the records of the toolboxes. Uses of other tools, and denied ones, have what
    /// the program reports.
    pub record: Arc<RunRecord>,
    /// The error of a failed turn.
    pub error: Option<ClaudeCodeError>,
    /// The id of the conversation in Claude Code.
    pub session: Option<String>,
    /// Events that this version does not know, without credentials: the first 64, of at most 16 KiB each.
    pub unknown: Vec<Value>,
}

impl ClaudeCodeOutput {
    /// The answer.
    pub fn text(&self) -> &str {
        &self.record.response
    }

    /// The record of a turn with an answer, else the error.
    ///
    /// # Errors
    /// [`ClaudeCodeOutput::error`].
    pub fn into_result(self) -> Result<Arc<RunRecord>, ClaudeCodeError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.record),
        }
    }

    /// The output of a turn that failed to start.
    pub(super) fn not_started(turn: &ClaudeCodeTurn, settings: &Settings, error: ClaudeCodeError) -> Self {
        OutputBuilder::new(turn, settings, None).fail(error, &[])
    }
}

/// A use of a tool.
struct Use {
    id: String,
    name: String,
    input: Value,
    parent: Option<String>,
    begun: Instant,
    record: CallRecord,
    is_over: bool,
}

/// The output of a turn in progress.
pub(super) struct OutputBuilder<'a> {
    settings: &'a Settings,
    record: RunRecord,
    begun: Instant,
    uses: Vec<Use>,
    last_text: String,
    /// The id of the latest message, which may come in several events.
    last_message: String,
    message_error: Option<String>,
    session: Option<String>,
    unknown: Vec<Value>,
}

impl<'a> OutputBuilder<'a> {
    pub(super) fn new(turn: &ClaudeCodeTurn, settings: &'a Settings, session: Option<String>) -> Self {
        let model = settings.model.as_deref().unwrap_or("default");
        let mut record = RunRecord::begin(turn.id, format!("claude-code/{model}"), SystemClock.timestamp());
        record.notices.clone_from(&turn.notices);
        Self {
            settings,
            record,
            begun: Instant::now(),
            uses: Vec::new(),
            last_text: String::new(),
            last_message: String::new(),
            message_error: None,
            session,
            unknown: Vec::new(),
        }
    }

    fn emit(&self, event: impl FnOnce() -> RunEvent) {
        if let Some(sink) = &self.settings.events {
            sink(&event());
        }
    }

    /// A text of the program, redacted.
    fn redact(&self, text: &str) -> String {
        redact(text, &self.settings.secrets())
    }

    /// Begins the turn with these tools, in a container if there is one.
    pub(super) fn begin(&mut self, tools: &[String], container: Option<&str>) {
        self.record.container_id = container.map(str::to_owned);
        self.emit(|| RunEvent::RunStarted {
            run: self.record.id,
            parent: self.record.parent,
            model: self.record.model.clone(),
            tools: tools.to_vec(),
        });
    }

    /// Adds a notice once.
    fn note(&mut self, message: &str) {
        let message = self.redact(message);
        if self.record.notices.len() < MAX_NOTICES && !self.record.notices.contains(&message) {
            self.emit(|| RunEvent::Notice { message: message.clone() });
            self.record.notices.push(message);
        }
    }

    /// Adds an event, except those that need a response or end the turn.
    pub(super) fn add(&mut self, event: Event) {
        let run = self.record.id;
        match event {
            Event::System(System::Init { session_id, model, .. }) => {
                if !model.is_empty() {
                    self.record.model = format!("claude-code/{}", redact(&model, &[]));
                }
                self.session = Some(session_id).filter(|session| !session.is_empty());
            }
            Event::System(System::PermissionDenied { tool_name, message }) => {
                self.note(&format!("`{tool_name}` was denied: {message}"));
            }
            Event::System(System::ApiRetry { attempt, error_status, error }) => {
                let status = error_status.map(|status| format!(", status {status}")).unwrap_or_default();
                self.note(&format!("attempt {attempt} to reach the provider failed: {error}{status}"));
            }
            Event::Assistant { message, parent_tool_use_id: parent, error } => {
                // The program counts results of tools as turns, so count messages here.
                if parent.is_none() && (message.id.is_empty() || message.id != self.last_message) {
                    self.record.iterations = self.record.iterations.saturating_add(1);
                    self.last_message = message.id;
                }
                self.message_error = error.or(self.message_error.take());
                for block in message.content {
                    self.add_block(parent.as_deref(), block);
                }
            }
            Event::User { message } => message.content.iter().for_each(|result| self.add_result(result)),
            Event::Partial { parent_tool_use_id: None, event } => self.emit(|| match event.delta {
                Delta::TextDelta { text } => RunEvent::TextDelta { run, text },
                Delta::ThinkingDelta { thinking: text } => RunEvent::ThinkingDelta { run, text },
            }),
            Event::Unknown(value) => {
                let text = value.to_string();
                if self.unknown.len() < MAX_UNKNOWN && text.len() <= MAX_UNKNOWN_BYTES {
                    let secrets = self.settings.secrets();
                    let scrubbed = secrets.iter().fold(text, |text, secret| secret.scrub(&text));
                    self.unknown.extend(serde_json::from_str::<Value>(&scrubbed).ok());
                }
            }
            // Text of sub-agents is internal; the session handles the others.
            Event::Partial { .. }
            | Event::Result(_)
            | Event::ControlRequest { .. }
            | Event::ControlResponse { .. } => {}
        }
    }

    fn add_block(&mut self, parent: Option<&str>, block: Block) {
        match block {
            Block::Text { text } if parent.is_none() => {
                if !self.settings.verbose {
                    self.emit(|| RunEvent::TextDelta { run: self.record.id, text: text.clone() });
                }
                self.last_text = text;
            }
            Block::ToolUse { id, name, input } if self.uses.len() < MAX_USES => {
                self.uses.push(Use::new(id, name, input, parent, &self.settings.caller));
            }
            Block::Text { .. } | Block::ToolUse { .. } => {}
        }
    }

    fn add_result(&mut self, result: &ToolResult) {
        let text = result.text();
        let error = result.is_error.then(|| ToolError::internal(self.redact(&text)));
        let is_result = |used: &&mut Use| used.id == result.tool_use_id && !used.is_over;
        if let Some(used) = self.uses.iter_mut().find(is_result) {
            used.is_over = true;
            used.record.duration = used.begun.elapsed();
            used.record.content_bytes = text.len();
            if error.is_none() {
                used.record.status = Status::Success;
            }
            used.record.error = error;
        }
    }

    /// The output of a turn that the program ended. `cost_before` is the cost of the process before the turn.
    pub(super) fn finish(
        mut self,
        ended: &Ended,
        cost_before: f64,
        servers: &[ToolServer],
    ) -> ClaudeCodeOutput {
        self.record.usage = ended.usage.into();
        self.record.cost_usd = ended.total_cost_usd.map(|total| (total - cost_before).max(0.0));
        for denial in &ended.permission_denials {
            if let Some(used) = self.uses.iter_mut().find(|used| used.id == denial.tool_use_id) {
                let reason = used.record.error.take().map(|error| error.message().to_owned());
                let reason = reason.filter(|reason| !reason.is_empty());
                let reason = reason.unwrap_or_else(|| "permission denied".to_owned());
                used.record.error = Some(ToolError::permission(reason));
                used.record.status = Status::Error;
                used.is_over = true;
            }
        }
        let answer = ended.result.clone().filter(|_| !ended.is_error);
        self.record.response = answer.unwrap_or_else(|| std::mem::take(&mut self.last_text));
        let (stop, error) = self.judge(ended);
        self.close(stop, error, servers)
    }

    /// The output of a turn that ended otherwise.
    pub(super) fn fail(mut self, error: ClaudeCodeError, servers: &[ToolServer]) -> ClaudeCodeOutput {
        self.record.response = std::mem::take(&mut self.last_text);
        let stop = match error.kind() {
            Kind::Cancelled => RunStopReason::Cancelled,
            Kind::Limit => RunStopReason::MaxTime,
            Kind::Provider | Kind::CredentialRefused => RunStopReason::ModelError,
            other => RunStopReason::Other(other.as_str().to_owned()),
        };
        self.close(stop, Some(error), servers)
    }

    /// The stop reason and the error of a turn. The program reports some failures as success.
    fn judge(&self, ended: &Ended) -> (RunStopReason, Option<ClaudeCodeError>) {
        let text = ended.errors.first().or(ended.result.as_ref());
        let text = text.map(|text| self.redact(text)).unwrap_or_default();
        let limit = |stop, message: &str| (stop, Some(Kind::Limit.error(message)));
        match (ended.subtype.as_str(), ended.stop_reason.as_deref()) {
            ("error_max_turns", _) => {
                limit(RunStopReason::MaxIterations, "Claude Code reached its limit of requests to the model")
            }
            ("error_max_budget_usd", _) => {
                limit(RunStopReason::MaxCost, "Claude Code reached its limit of cost")
            }
            (subtype, _) if ended.is_error || subtype.starts_with("error") => {
                let error = match error_kind(self.message_error.as_deref(), ended.api_error_status, &text) {
                    Kind::CredentialRefused => rejected_credential(&text),
                    kind => kind.error(format!("Claude Code failed: {text}")),
                };
                (RunStopReason::ModelError, Some(error))
            }
            _ if !ended.permission_denials.is_empty() => {
                let mut names: Vec<_> =
                    ended.permission_denials.iter().map(|denial| denial.tool_name.as_str()).collect();
                names.sort_unstable();
                names.dedup();
                let names = self.redact(&names.join("`, `"));
                let error = Kind::Denied.error(format!("Claude Code was denied `{names}`"));
                let error = error.hint("allow the tool by its name, or exclude it in the prompt");
                (RunStopReason::Other("permission_denied".to_owned()), Some(error))
            }
            (_, Some("max_tokens")) => {
                limit(RunStopReason::OutputTokens, "the model reached its limit of output tokens")
            }
            (_, Some("refusal")) => (RunStopReason::Refusal, Some(Kind::Failed.error("the model refused"))),
            _ => (RunStopReason::EndTurn, None),
        }
    }

    fn close(
        mut self,
        stop: RunStopReason,
        error: Option<ClaudeCodeError>,
        servers: &[ToolServer],
    ) -> ClaudeCodeOutput {
        let uses = std::mem::take(&mut self.uses);
        for used in &uses {
            let name = own_name(&used.name, servers);
            if !self.record.tools_used.iter().any(|known| known == name) {
                self.record.tools_used.push(name.to_owned());
            }
        }
        self.record.tool_calls = self.calls(uses, servers);
        self.record.artifacts =
            self.record.tool_calls.iter().flat_map(|call| call.artifacts.iter().cloned()).collect();
        self.record.success = error.is_none() && stop.is_answer();
        stop.as_str().clone_into(&mut self.record.stop_reason);
        self.record.set_duration(self.begun.elapsed());
        self.record.error = error.as_ref().map(ClaudeCodeError::to_json);
        let record = Arc::new(self.record.clone());
        self.emit(|| RunEvent::RunFinished { record: Arc::clone(&record) });
        ClaudeCodeOutput { stop, record, error, session: self.session, unknown: self.unknown }
    }

    /// The records of all uses, in the order of the model. Connected tools have the records of their toolboxes.
    fn calls(&self, uses: Vec<Use>, servers: &[ToolServer]) -> Vec<Arc<CallRecord>> {
        let mut connected: Vec<(String, VecDeque<Arc<CallRecord>>)> =
            servers.iter().map(|server| (format!("mcp__{}__", server.name), server.take_records())).collect();
        let mut calls = Vec::with_capacity(uses.len());
        for used in uses {
            let server = connected.iter_mut().find(|(prefix, _)| used.name.starts_with(prefix.as_str()));
            let is_connected = server.is_some();
            let name = own_name(&used.name, servers).to_owned();
            let record = server.and_then(|(prefix, records)| {
                let tool = used.name.strip_prefix(prefix.as_str())?;
                let index = records.iter().position(|record| &*record.tool == tool)?;
                records.remove(index)
            });
            calls.push(record.unwrap_or_else(|| {
                let record = Arc::new(used.into_record(&name, is_connected));
                self.emit(|| RunEvent::CallFinished { record: Arc::clone(&record) });
                record
            }));
        }
        // Calls that the program did not report.
        calls.extend(connected.into_iter().flat_map(|(_, records)| records));
        calls
    }
}

impl Use {
    fn new(id: String, name: String, input: Value, parent: Option<&str>, caller: &Caller) -> Self {
        let call = Call::new(name.clone(), Value::Null).with_caller(caller.clone());
        let record =
            CallRecord::begin(&call, name.as_str().into(), "claude-code".into(), SystemClock.timestamp());
        let parent = parent.map(str::to_owned);
        Self { id, name, input, parent, begun: Instant::now(), record, is_over: false }
    }

    /// The record of the use. It omits arguments of connected tools, since only a toolbox knows which are secret.
    fn into_record(self, name: &str, is_connected: bool) -> CallRecord {
        let mut record = self.record;
        record.tool = name.into();
        let is_denied = record.error.as_ref().is_some_and(|error| error.code() == Code::Permission);
        record.attempts = u32::from(self.is_over && !is_denied);
        if !is_connected && self.input.to_string().len() <= MAX_ARGUMENTS {
            record.arguments = Some(Arc::new(self.input));
        }
        if !self.is_over {
            record.duration = self.begun.elapsed();
            record.error = Some(ToolError::cancelled("the turn ended before the tool"));
        }
        record.metadata.insert("tool_use_id".to_owned(), self.id.into());
        if let Some(parent) = self.parent {
            record.metadata.insert("parent_tool_use_id".to_owned(), parent.into());
        }
        record
    }
}

/// The name of a tool in its own server: `add` for Claude Code's `mcp__calc__add`.
fn own_name<'a>(name: &'a str, servers: &[ToolServer]) -> &'a str {
    let of_server = |server: &ToolServer| name.strip_prefix(&format!("mcp__{}__", server.name));
    servers.iter().find_map(of_server).unwrap_or(name)
}

/// The kind of a failure of the provider, by its name, its status, or its text.
pub(super) fn error_kind(name: Option<&str>, status: Option<u64>, text: &str) -> Kind {
    match (name, status) {
        (Some("authentication_failed" | "oauth_org_not_allowed" | "billing_error"), _)
        | (_, Some(401..=403)) => Kind::CredentialRefused,
        (Some("rate_limit" | "server_error" | "overloaded"), _) | (_, Some(429 | 500..)) => Kind::Provider,
        _ if text.contains("/login") => Kind::CredentialRefused,
        _ => Kind::Failed,
    }
}

/// The error for a rejected credential.
pub(super) fn rejected_credential(text: &str) -> ClaudeCodeError {
    let text = if text.is_empty() { String::new() } else { format!(": {text}") };
    let error = Kind::CredentialRefused.error(format!("the provider rejected the credential{text}"));
    error.hint("the login may have expired: create a token with `claude setup-token`, or use another key")
}
