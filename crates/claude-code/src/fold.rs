//! What a turn came to, put together from what the program writes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use toolpost_core::{
    Call, CallRecord, Clock as _, Event as Told, RunRecord, Status, SystemClock, Timestamp, ToolError,
};

use super::connection::Served;
use super::error::{ClaudeCodeError, ClaudeCodeErrorKind, foreign};
use super::event::{Block, Ended, Event, Piece, ToolResult};
use super::session::ClaudeCodeTurn;
use super::settings::Settings;
use toolpost_agent::RunStopReason;

/// The most uses of tools that are kept of one turn.
const MAX_USES: usize = 10_000;
/// The most events that are kept as they came, of one turn.
const MAX_UNKNOWN: usize = 64;
/// The largest of these, in bytes of JSON.
const MAX_UNKNOWN_BYTES: usize = 16 << 10;
/// The largest arguments that a record keeps, in bytes of JSON.
const MAX_ARGUMENTS: usize = 64 << 10;
/// The most notices that a record keeps.
const MAX_NOTICES: usize = 64;
/// The most sub-agents that are told of.
const MAX_SUBAGENTS: usize = 256;

/// What a turn came to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClaudeCodeOutput {
    /// Why it ended.
    pub stop: RunStopReason,
    /// Everything that is kept of it. Calls of connected toolboxes are there as the toolboxes recorded them; uses of
    /// other tools, and uses that were denied, as far as the program tells of them.
    pub record: Arc<RunRecord>,
    /// Why it failed, when it did.
    pub error: Option<ClaudeCodeError>,
    /// The program's own name of the conversation.
    pub session: Option<String>,
    /// The sub-agents that were started, oldest first.
    pub subagents: Vec<Subagent>,
    /// Events that this version does not know, as they came but for credentials: the first 64, at most 16 KiB each.
    pub unknown: Vec<Value>,
}

/// A sub-agent that Claude Code has started.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subagent {
    /// The program's own name of it.
    pub id: String,
    /// The use of a tool that started it.
    pub started_by: Option<String>,
    /// What it was to do, or what it said last.
    pub description: String,
    /// How it stands: `running`, or what the program says of its end, such as `completed`.
    pub status: String,
    /// How many tools it has used.
    pub tool_uses: u32,
}

impl ClaudeCodeOutput {
    /// The answer.
    pub fn text(&self) -> &str {
        &self.record.response
    }

    /// The record of a turn that reached an answer, else why it did not.
    ///
    /// # Errors
    /// [`ClaudeCodeOutput::error`].
    pub fn into_result(self) -> Result<Arc<RunRecord>, ClaudeCodeError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.record),
        }
    }

    /// Of a turn for which nothing could be started.
    pub(super) fn not_started(turn: &ClaudeCodeTurn, settings: &Settings, error: ClaudeCodeError) -> Self {
        Fold::new(turn, settings, None).failed(error, &[])
    }
}

/// A use of a tool.
struct Use {
    id: String,
    name: String,
    input: Value,
    parent: Option<String>,
    started: Timestamp,
    begun: Instant,
    record: CallRecord,
    is_over: bool,
}

/// A turn while it goes on.
pub(super) struct Fold<'a> {
    settings: &'a Settings,
    record: RunRecord,
    begun: Instant,
    uses: Vec<Use>,
    last_text: String,
    /// The message that the model wrote last; a message comes in several events.
    last_message: String,
    message_error: Option<String>,
    session: Option<String>,
    subagents: Vec<Subagent>,
    unknown: Vec<Value>,
}

impl<'a> Fold<'a> {
    pub(super) fn new(turn: &ClaudeCodeTurn, settings: &'a Settings, session: Option<String>) -> Self {
        let model = settings.model.clone().unwrap_or_else(|| "default".to_owned());
        let mut record = RunRecord::begin(turn.id(), format!("claude-code/{model}"), SystemClock.timestamp());
        record.notices = turn.notices().to_vec();
        Self {
            settings,
            record,
            begun: Instant::now(),
            uses: Vec::new(),
            last_text: String::new(),
            last_message: String::new(),
            message_error: None,
            session,
            subagents: Vec::new(),
            unknown: Vec::new(),
        }
    }

    /// Says in which container the program runs.
    pub(super) fn in_container(&mut self, id: Option<&str>) {
        self.record.container_id = id.map(str::to_owned);
    }

    fn tell(&self, event: impl FnOnce() -> Told) {
        if let Some(sink) = &self.settings.events {
            sink(&event());
        }
    }

    /// Says that the turn begins, with these tools.
    pub(super) fn begin(&self, tools: &[String]) {
        self.tell(|| Told::RunStarted {
            run: self.record.id,
            parent: self.record.parent,
            model: self.record.model.clone(),
            tools: tools.to_vec(),
        });
    }

    /// Keeps a sentence for the owner, once.
    pub(super) fn note(&mut self, message: &str) {
        let message = foreign(message, &self.settings.secrets());
        if self.record.notices.len() < MAX_NOTICES && !self.record.notices.contains(&message) {
            self.tell(|| Told::Notice { message: message.clone() });
            self.record.notices.push(message);
        }
    }

    /// Takes an event in, but for those that need an answer or end the turn.
    pub(super) fn take(&mut self, event: Event) {
        match event {
            Event::Init { session, model, .. } => {
                if !model.is_empty() {
                    self.record.model = format!("claude-code/{}", foreign(&model, &[]));
                }
                self.session = Some(session).filter(|session| !session.is_empty());
            }
            Event::Assistant { id, parent, blocks, error } => {
                // The program's own count of turns is one of messages, results of tools among them.
                if parent.is_none() && (id.is_empty() || id != self.last_message) {
                    self.record.iterations = self.record.iterations.saturating_add(1);
                    self.last_message = id;
                }
                self.message_error = error.or(self.message_error.take());
                self.message(parent.as_deref(), blocks);
            }
            Event::Results { results, .. } => results.iter().for_each(|result| self.result(result)),
            Event::Delta { parent: None, piece } => {
                let run = self.record.id;
                self.tell(|| match piece {
                    Piece::Text(text) => Told::TextDelta { run, text },
                    Piece::Thinking(text) => Told::ThinkingDelta { run, text },
                });
            }
            Event::Denied { tool, message } => self.note(&format!("`{tool}` was denied: {message}")),
            Event::Retry { attempt, status, error } => {
                let status = status.map(|status| format!(", status {status}")).unwrap_or_default();
                self.note(&format!("attempt {attempt} to reach the provider failed: {error}{status}"));
            }
            Event::Task { stage, id, call, description, status } => {
                self.task(&stage, id, call, &description, status);
            }
            Event::Unknown(value) => {
                let text = value.to_string();
                if self.unknown.len() < MAX_UNKNOWN && text.len() <= MAX_UNKNOWN_BYTES {
                    let secrets = self.settings.secrets();
                    let scrubbed = secrets.iter().fold(text, |text, secret| secret.scrub(&text));
                    self.unknown.extend(serde_json::from_str::<Value>(&scrubbed).ok());
                }
            }
            // What a sub-agent writes is its own; the others are the session's business.
            Event::Delta { .. } | Event::Ended(_) | Event::Request { .. } | Event::Answer { .. } => {}
        }
    }

    fn message(&mut self, parent: Option<&str>, blocks: Vec<Block>) {
        for block in blocks {
            match block {
                Block::Text(text) if parent.is_none() => {
                    if !self.settings.verbose {
                        let run = self.record.id;
                        self.tell(|| Told::TextDelta { run, text: text.clone() });
                    }
                    self.last_text = text;
                }
                Block::ToolUse { id, name, input } if self.uses.len() < MAX_USES => {
                    if let Some(parent) = parent
                        && let Some(agent) = self
                            .subagents
                            .iter_mut()
                            .find(|agent| agent.started_by.as_deref() == Some(parent))
                    {
                        agent.tool_uses = agent.tool_uses.saturating_add(1);
                    }
                    self.uses.push(Use::new(id, name, input, parent, &self.settings.caller));
                }
                // Reasoning is told while it is written, to who wants to hear it.
                Block::Text(_) | Block::Thinking(_) | Block::ToolUse { .. } | Block::Other => {}
            }
        }
    }

    fn result(&mut self, result: &ToolResult) {
        let secrets = self.settings.secrets();
        if let Some(used) = self.uses.iter_mut().find(|used| used.id == result.id && !used.is_over) {
            used.is_over = true;
            used.record.duration = used.begun.elapsed();
            used.record.content_bytes = result.text.len();
            if result.is_error {
                let message = foreign(&result.text, &secrets);
                used.record.error = Some(ToolError::internal(message));
            } else {
                used.record.status = Status::Success;
            }
        }
    }

    fn task(
        &mut self,
        stage: &str,
        id: String,
        call: Option<String>,
        description: &str,
        status: Option<String>,
    ) {
        let description = foreign(description, &self.settings.secrets());
        if let Some(agent) = self.subagents.iter_mut().find(|agent| agent.id == id) {
            if !description.is_empty() {
                agent.description = description;
            }
            if let Some(status) = status.map(|status| foreign(&status, &[])) {
                agent.status = status;
            }
            agent.started_by = agent.started_by.take().or(call);
        } else if self.subagents.len() < MAX_SUBAGENTS {
            let status = status.map_or_else(|| "running".to_owned(), |status| foreign(&status, &[]));
            self.note(&format!("a sub-agent has {stage}: {description}"));
            self.subagents.push(Subagent { id, started_by: call, description, status, tool_uses: 0 });
        }
    }

    /// The outcome of a turn that the program has ended. `cost_before` is what the process had cost before.
    pub(super) fn ended(mut self, ended: &Ended, cost_before: f64, servers: &[Served]) -> ClaudeCodeOutput {
        self.record.usage = ended.usage.clone();
        self.record.cost_usd = ended.total_cost.map(|total| (total - cost_before).max(0.0));
        for denial in &ended.denials {
            if let Some(used) = self.uses.iter_mut().find(|used| used.id == denial.id) {
                let why =
                    used.record.error.take().map(|error| error.message().to_owned()).unwrap_or_default();
                used.record.error = Some(ToolError::permission(if why.is_empty() {
                    "it was denied".to_owned()
                } else {
                    why
                }));
                used.record.status = Status::Error;
                used.is_over = true;
            }
        }
        self.record.response = ended
            .result
            .clone()
            .filter(|_| !ended.is_error)
            .unwrap_or_else(|| std::mem::take(&mut self.last_text));
        let (stop, error) = self.judged(ended);
        self.finished(stop, error, servers)
    }

    /// The outcome of a turn that something else has ended.
    pub(super) fn failed(mut self, error: ClaudeCodeError, servers: &[Served]) -> ClaudeCodeOutput {
        self.record.response = std::mem::take(&mut self.last_text);
        let stop = match error.kind() {
            ClaudeCodeErrorKind::Cancelled => RunStopReason::Cancelled,
            ClaudeCodeErrorKind::Limit => RunStopReason::MaxTime,
            ClaudeCodeErrorKind::Provider | ClaudeCodeErrorKind::CredentialRefused => {
                RunStopReason::ModelError
            }
            other => RunStopReason::Other(other.as_str().to_owned()),
        };
        self.finished(stop, Some(error), servers)
    }

    /// What the end of a turn means. The program calls many things a success.
    fn judged(&self, ended: &Ended) -> (RunStopReason, Option<ClaudeCodeError>) {
        let secrets = self.settings.secrets();
        let said = ended
            .errors
            .first()
            .or(ended.result.as_ref())
            .map_or_else(String::new, |text| foreign(text, &secrets));
        let failed = |kind, message: String| Some(ClaudeCodeError::new(kind, message));
        match ended.subtype.as_str() {
            "error_max_turns" => {
                let error = ClaudeCodeError::new(
                    ClaudeCodeErrorKind::Limit,
                    "Claude Code has asked the model as often as it may",
                );
                return (RunStopReason::MaxIterations, Some(error));
            }
            "error_max_budget_usd" => {
                let error = ClaudeCodeError::new(
                    ClaudeCodeErrorKind::Limit,
                    "Claude Code has cost as much as it may",
                );
                return (RunStopReason::MaxCost, Some(error));
            }
            _ => {}
        }
        if ended.is_error || ended.subtype.starts_with("error") {
            let kind = kind_of(self.message_error.as_deref(), ended.api_status, &said);
            let mut error = ClaudeCodeError::new(kind, format!("Claude Code failed: {said}"));
            if kind == ClaudeCodeErrorKind::CredentialRefused {
                error = refused(&said);
            }
            return (RunStopReason::ModelError, Some(error));
        }
        if !ended.denials.is_empty() {
            let mut names: Vec<&str> = ended.denials.iter().map(|denial| denial.tool.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            let names = foreign(&names.join("`, `"), &secrets);
            let error = ClaudeCodeError::new(
                ClaudeCodeErrorKind::Denied,
                format!("Claude Code was not allowed to use `{names}`"),
            );
            let error = error.hint("allow the tool by its name, or say in the prompt not to use it");
            return (RunStopReason::Other("permission_denied".to_owned()), Some(error));
        }
        match ended.stop_reason.as_deref() {
            Some("max_tokens") => {
                let message = "the model reached the longest answer that it may write".to_owned();
                (RunStopReason::OutputTokens, failed(ClaudeCodeErrorKind::Limit, message))
            }
            Some("refusal") => {
                (RunStopReason::Refusal, failed(ClaudeCodeErrorKind::Failed, "the model declined".to_owned()))
            }
            _ => (RunStopReason::EndTurn, None),
        }
    }

    fn finished(
        mut self,
        stop: RunStopReason,
        error: Option<ClaudeCodeError>,
        servers: &[Served],
    ) -> ClaudeCodeOutput {
        let uses = std::mem::take(&mut self.uses);
        for used in &uses {
            if !self.record.tools_used.contains(&used.name) {
                self.record.tools_used.push(used.name.clone());
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
        self.tell(|| Told::RunFinished { record: Arc::clone(&record) });
        ClaudeCodeOutput {
            stop,
            record,
            error,
            session: self.session,
            subagents: self.subagents,
            unknown: self.unknown,
        }
    }

    /// The records of all uses, in the order of the model's. Those of our own tools are the toolboxes'.
    fn calls(&self, uses: Vec<Use>, servers: &[Served]) -> Vec<Arc<CallRecord>> {
        let mut ours: Vec<(String, VecDeque<Arc<CallRecord>>)> = servers
            .iter()
            .filter(|server| server.is_own())
            .map(|server| (format!("mcp__{}__", server.name), server.take_records().into()))
            .collect();
        let mut calls = Vec::with_capacity(uses.len());
        for used in uses {
            let own = ours.iter_mut().find(|(prefix, _)| used.name.starts_with(prefix.as_str()));
            let is_own = own.is_some();
            let record = own.and_then(|(prefix, records)| {
                let tool = used.name.strip_prefix(prefix.as_str())?;
                let place = records.iter().position(|record| &*record.tool == tool)?;
                records.remove(place)
            });
            calls.push(record.unwrap_or_else(|| {
                let record = Arc::new(used.into_record(is_own));
                self.tell(|| Told::CallFinished { record: Arc::clone(&record) });
                record
            }));
        }
        // Calls that the program made and did not tell of.
        calls.extend(ours.into_iter().flat_map(|(_, records)| records));
        calls
    }
}

impl Use {
    fn new(
        id: String,
        name: String,
        input: Value,
        parent: Option<&str>,
        caller: &toolpost_core::Caller,
    ) -> Self {
        let started = SystemClock.timestamp();
        let call = Call::new(name.clone(), Value::Null).with_caller(caller.clone());
        let record = CallRecord::begin(&call, name.as_str().into(), "claude-code".into(), started);
        let parent = parent.map(str::to_owned);
        Self { id, name, input, parent, started, begun: Instant::now(), record, is_over: false }
    }

    /// As the program tells of it. Arguments of our own tools may be secret, and only a toolbox knows which are.
    fn into_record(self, is_own: bool) -> CallRecord {
        let mut record = self.record;
        record.started = self.started;
        record.attempts = u32::from(
            self.is_over
                && record.error.as_ref().is_none_or(|error| error.code() != toolpost_core::Code::Permission),
        );
        if !is_own && self.input.to_string().len() <= MAX_ARGUMENTS {
            record.arguments = Some(Arc::new(self.input));
        }
        if !self.is_over {
            record.duration = self.begun.elapsed();
            record.error = Some(ToolError::cancelled("the turn ended before the tool did"));
        }
        record.metadata.insert("tool_use_id".to_owned(), self.id.into());
        if let Some(parent) = self.parent {
            record.metadata.insert("parent_tool_use_id".to_owned(), parent.into());
        }
        record
    }
}

/// What a failure of the provider means, by its word, its status, or the sentence where there is no word.
pub(super) fn kind_of(word: Option<&str>, status: Option<u64>, said: &str) -> ClaudeCodeErrorKind {
    match (word, status) {
        (Some("authentication_failed" | "oauth_org_not_allowed" | "billing_error"), _)
        | (_, Some(401..=403)) => ClaudeCodeErrorKind::CredentialRefused,
        (Some("rate_limit" | "server_error" | "overloaded"), _) | (_, Some(429 | 500..)) => {
            ClaudeCodeErrorKind::Provider
        }
        _ if said.contains("/login") => ClaudeCodeErrorKind::CredentialRefused,
        _ => ClaudeCodeErrorKind::Failed,
    }
}

/// The provider does not take the credential.
pub(super) fn refused(said: &str) -> ClaudeCodeError {
    let said = if said.is_empty() { String::new() } else { format!(": {said}") };
    ClaudeCodeError::new(
        ClaudeCodeErrorKind::CredentialRefused,
        format!("the provider refuses the credential{said}"),
    )
    .hint("the login may have expired: make a new token with `claude setup-token`, or use another key")
}
