//! The port of a one-shot program: streams, notifications, sessions, sampling.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value, json};
use toolpost_core::{
    Answer, Artifact, ArtifactData, BoxFuture, CallId, Cancellation, Delivery, Hint, LogLine, Port, Progress,
    Question, QuestionKind, Sample, SampleRequest, Suggestion, ToolError,
};

use super::grammar::SampleVia;
use super::inlet::Inlet;
use super::outlet::Outlet;
use super::terminal;
use crate::protocol::dialect::{Notice, SESSION_PROMPT, SampleAnswer, SampleLine, SessionLine};
use crate::protocol::line::Line;

/// Maximum number of log lines retained for `verbose`.
const MAX_LOG: usize = 1000;
/// Maximum size of an artifact in a line, in bytes.
const MAX_ARTIFACT: usize = 16 * 1024 * 1024;
/// Keys of a caller's line that may hold the answer.
const ANSWER_KEYS: [&str; 5] = ["value", "answer", "input", "text", "response"];

pub(super) struct ProgramPort {
    pub(super) output: Outlet,
    pub(super) errors: Outlet,
    pub(super) input: Arc<Inlet>,
    pub(super) stream: bool,
    /// Whether notices are text for a terminal.
    pub(super) for_terminal: bool,
    pub(super) session: bool,
    pub(super) sample_via: Option<SampleVia>,
    pub(super) offline: bool,
    /// Cancels the call when the reader is gone.
    pub(super) cancellation: Cancellation,
    /// Whether log lines are retained.
    pub(super) keep_log: bool,
    pub(super) log: Mutex<Vec<LogLine>>,
    /// Whether the session started.
    pub(super) begun: AtomicBool,
    /// Number of questions after the end of the input.
    pub(super) unanswered: AtomicUsize,
    /// Serializes sampling over standard input.
    pub(super) sampling: tokio::sync::Mutex<()>,
}

impl ProgramPort {
    fn notice_line(&self, notice: &Notice) -> (&Outlet, Vec<u8>) {
        if self.for_terminal {
            return (&self.errors, terminal::notice(notice).into_bytes());
        }
        let (outlet, line) = if self.stream {
            (&self.output, notice.to_stream_line())
        } else {
            (&self.errors, notice.to_notification())
        };
        (outlet, format!("{line}\n").into_bytes())
    }

    fn forward(&self, notice: &Notice) -> Delivery {
        let (outlet, line) = self.notice_line(notice);
        outlet.offer(line)
    }

    /// The retained log lines.
    pub(super) fn log(&self) -> Vec<LogLine> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn write(&self, line: &Value) {
        if !self.output.send(format!("{line}\n").into_bytes()).await {
            self.cancellation.cancel();
        }
    }

    /// The next non-empty line of the caller.
    async fn line(&self) -> Option<Line> {
        loop {
            match self.input.line().await {
                Some(Line::Whole(line)) if line.trim_ascii().is_empty() => {}
                other => return other,
            }
        }
    }

    async fn question(&self, question: &Question) -> Result<Answer, ToolError> {
        if !self.session {
            return Err(ToolError::precondition("the tool asks a question, but no session is open")
                .suggest("Add --session to the command."));
        }
        let mut more = Map::new();
        match &question.kind {
            QuestionKind::Input { schema: Some(schema) } => {
                more.insert("schema".to_owned(), schema.clone());
            }
            QuestionKind::Approval { tool, arguments } => {
                more.insert("approval".to_owned(), json!({ "tool": tool, "arguments": arguments }));
            }
            _ => {}
        }
        let prompt = SESSION_PROMPT.to_owned();
        let line = if self.begun.swap(true, Ordering::Relaxed) {
            more.insert("message".to_owned(), question.message.as_str().into());
            SessionLine::AwaitingInput { prompt, more }
        } else {
            SessionLine::SessionStart { message: question.message.clone(), prompt, more }
        };
        self.write(&serde_json::to_value(line).unwrap_or_default()).await;
        match self.line().await {
            Some(Line::Whole(line)) => {
                let value: Value = serde_json::from_slice(&line).map_err(|error| {
                    ToolError::invalid_input(format!("the session line is not valid JSON: {error}"))
                        .suggest("Write one JSON object per line, such as {\"value\": \"yes\"}.")
                })?;
                if !value.is_object() {
                    return Err(ToolError::invalid_input("the session line is not a JSON object"));
                }
                Ok(answer(question, value))
            }
            Some(Line::TooLong { .. }) => {
                Err(ToolError::invalid_input("the session line is longer than 32 MiB"))
            }
            // The end of the input declines one question, so that the tool can finish. A second question cancels the
            // call.
            None if self.unanswered.fetch_add(1, Ordering::Relaxed) == 0 => Ok(Answer::Declined),
            None => {
                self.cancellation.cancel();
                std::future::pending().await
            }
        }
    }

    async fn sample_over_lines(&self, request: &SampleRequest) -> Result<Sample, ToolError> {
        let _one_at_a_time = self.sampling.lock().await;
        let id = format!("{:08x}", RandomState::new().build_hasher().finish() as u32);
        let line = SampleLine::new(id.clone(), request.clone());
        self.write(&serde_json::to_value(line).unwrap_or_default()).await;
        // Other lines are ignored.
        while let Some(line) = self.line().await {
            let Line::Whole(line) = line else { continue };
            if let Ok(answer) = serde_json::from_slice::<SampleAnswer>(&line)
                && answer.kind == SampleAnswer::TYPE
                && answer.id == id
            {
                return Ok(answer.sample);
            }
        }
        Err(ToolError::dependency("the input ended before the sampling response"))
    }
}

/// The answer in a line of the caller.
fn answer(question: &Question, mut line: Value) -> Answer {
    if line.get("action").and_then(Value::as_str) == Some("quit") {
        return Answer::Declined;
    }
    let wants_object = match &question.kind {
        QuestionKind::Input { schema: Some(schema) } => {
            schema.get("type").and_then(Value::as_str) == Some("object")
        }
        _ => false,
    };
    let value = match &mut line {
        Value::Object(fields) if fields.len() == 1 && !wants_object => {
            let key = ANSWER_KEYS.into_iter().find(|key| fields.contains_key(*key));
            key.and_then(|key| fields.remove(key))
        }
        _ => None,
    };
    let value = value.unwrap_or(line);
    let is_yes = value == Value::Bool(true)
        || value
            .as_str()
            .is_some_and(|text| matches!(text.to_ascii_lowercase().as_str(), "yes" | "y" | "true"));
    match &question.kind {
        QuestionKind::Approval { .. } if is_yes => Answer::Given { value: true.into() },
        QuestionKind::Approval { .. } => Answer::Declined,
        _ => Answer::Given { value },
    }
}

impl Port for ProgramPort {
    fn progress(&self, _call: CallId, progress: Progress) -> Delivery {
        self.forward(&Notice::from(&progress))
    }

    fn log(&self, _call: CallId, line: LogLine) -> Delivery {
        let delivery = self.forward(&Notice::from(&line));
        if self.keep_log {
            let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            if log.len() < MAX_LOG {
                log.push(line);
            }
        }
        delivery
    }

    fn takes_artifacts(&self) -> bool {
        true
    }

    fn artifact(&self, _call: CallId, artifact: Artifact) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async move {
            if let ArtifactData::Bytes(bytes) = &artifact.data
                && bytes.len() > MAX_ARTIFACT
            {
                return Err(ToolError::limit(format!(
                    "the artifact `{}` has {} bytes; a line holds 16 MiB",
                    artifact.name,
                    bytes.len()
                ))
                .suggest("Write large files to the working directory and deliver their path."));
            }
            let (outlet, line) = self.notice_line(&Notice::from(&artifact));
            if !outlet.send(line).await {
                self.cancellation.cancel();
            }
            Ok(())
        })
    }

    fn ask<'a>(&'a self, _call: CallId, question: &'a Question) -> BoxFuture<'a, Result<Answer, ToolError>> {
        Box::pin(self.question(question))
    }

    fn sample<'a>(
        &'a self,
        _call: CallId,
        request: &'a SampleRequest,
    ) -> BoxFuture<'a, Result<Sample, ToolError>> {
        Box::pin(async move {
            let address = match &self.sample_via {
                Some(SampleVia::Standard) => return self.sample_over_lines(request).await,
                Some(SampleVia::Http(address)) => address.clone(),
                None => {
                    return Err(ToolError::precondition(
                        "the tool needs a model, but sampling is not enabled",
                    )
                    .suggest(Suggestion::with_hint(
                        "Add `--sample-via stdin` or `--sample-via http://…` to the command.",
                        &Hint::NameModel,
                    )));
                }
            };
            let line = SampleLine::new(CallId::new().to_string(), request.clone());
            let body = serde_json::to_vec(&line)?;
            let offline = self.offline;
            let answer = tokio::task::spawn_blocking(move || address.post(&body, offline)).await??;
            let answer: SampleAnswer = serde_json::from_slice(&answer).map_err(|error| {
                ToolError::dependency(format!("the completion is not `{{\"content\": …}}`: {error}"))
            })?;
            Ok(answer.sample)
        })
    }
}
