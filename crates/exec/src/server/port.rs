//! What a tool of a one-shot program can do while it runs: lines of a stream, notifications, a session, sampling.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value, json};
use toolpost_core::{
    Answer, Artifact, ArtifactData, BoxFuture, CallId, Cancellation, Delivery, LogLine, Port, Progress,
    Question, QuestionKind, Sample, SampleRequest, ToolError,
};

use super::grammar::SampleVia;
use super::inlet::Inlet;
use super::outlet::Outlet;
use super::person;
use crate::protocol::dialect::{Notice, SESSION_PROMPT, SampleAnswer, SampleLine, SessionLine};
use crate::protocol::line::Line;

/// How many log lines are kept for `verbose`.
const MAX_LOG: usize = 1000;
/// The largest file that is written into a line, in bytes.
const MAX_ARTIFACT: usize = 16 * 1024 * 1024;
/// The keys under which a line of the caller may hold its answer.
const ANSWER_KEYS: [&str; 5] = ["value", "answer", "input", "text", "response"];

pub(super) struct ProgramPort {
    pub(super) output: Outlet,
    pub(super) errors: Outlet,
    pub(super) input: Arc<Inlet>,
    pub(super) stream: bool,
    /// Whether notifications are for a person.
    pub(super) for_person: bool,
    pub(super) session: bool,
    pub(super) sample_via: Option<SampleVia>,
    pub(super) offline: bool,
    /// Ends the call when nobody is there any more.
    pub(super) cancellation: Cancellation,
    /// Whether log lines are kept.
    pub(super) keep_log: bool,
    pub(super) log: Mutex<Vec<LogLine>>,
    /// Whether the session has begun.
    pub(super) begun: AtomicBool,
    /// How often a question found no caller.
    pub(super) unanswered: AtomicUsize,
    /// Prompts over standard input wait for each other.
    pub(super) sampling: tokio::sync::Mutex<()>,
}

impl ProgramPort {
    fn notice_line(&self, notice: &Notice) -> (&Outlet, Vec<u8>) {
        if self.for_person {
            return (&self.errors, person::notice(notice).into_bytes());
        }
        let (outlet, line) = if self.stream {
            (&self.output, notice.to_stream_line())
        } else {
            (&self.errors, notice.to_notification())
        };
        (outlet, format!("{line}\n").into_bytes())
    }

    fn tell(&self, notice: &Notice) -> Delivery {
        let (outlet, line) = self.notice_line(notice);
        outlet.offer(line)
    }

    /// The log lines that came so far.
    pub(super) fn log(&self) -> Vec<LogLine> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn write(&self, line: &Value) {
        if !self.output.send(format!("{line}\n").into_bytes()).await {
            self.cancellation.cancel();
        }
    }

    /// The next line of the caller that is not empty.
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
            return Err(ToolError::precondition("the tool asks a question, and nobody can answer it here")
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
                    ToolError::invalid_input(format!("the line of the session is no JSON: {error}"))
                        .suggest("Write one JSON object a line, such as {\"value\": \"yes\"}.")
                })?;
                if !value.is_object() {
                    return Err(ToolError::invalid_input("the line of the session is JSON but no object"));
                }
                Ok(answer(question, value))
            }
            Some(Line::TooLong { .. }) => {
                Err(ToolError::invalid_input("the line of the session is longer than 32 MiB"))
            }
            // The end of the input declines one question, so that the tool can close its session; who goes on asking is
            // stopped.
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
        // What is not the answer is not for this tool.
        while let Some(line) = self.line().await {
            let Line::Whole(line) = line else { continue };
            if let Ok(answer) = serde_json::from_slice::<SampleAnswer>(&line)
                && answer.kind == SampleAnswer::TYPE
                && answer.id == id
            {
                return Ok(answer.sample);
            }
        }
        Err(ToolError::dependency("the caller's input ended before the prompt was completed"))
    }
}

/// What a line of the caller answers.
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
        self.tell(&Notice::from(&progress))
    }

    fn log(&self, _call: CallId, line: LogLine) -> Delivery {
        let delivery = self.tell(&Notice::from(&line));
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
                    "the artefact `{}` has {} bytes, and a line takes 16 MiB",
                    artifact.name,
                    bytes.len()
                ))
                .suggest("Write large files to the working folder, and hand over their path."));
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
                    return Err(ToolError::precondition("the tool needs a model, and none was given")
                        .suggest("Add `--sample-via stdin` or `--sample-via http://…` to the command."));
                }
            };
            let line = SampleLine::new(CallId::new().to_string(), request.clone());
            let body = serde_json::to_vec(&line)?;
            let offline = self.offline;
            let answer = tokio::task::spawn_blocking(move || address.post(&body, offline)).await??;
            let answer: SampleAnswer = serde_json::from_slice(&answer).map_err(|error| {
                ToolError::dependency(format!("the completion is no `{{\"content\": …}}`: {error}"))
            })?;
            Ok(answer.sample)
        })
    }
}
