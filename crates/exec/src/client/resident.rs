//! Resident programs: one process for many calls, one call at a time.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use toolpost_core::{Artifact, Call, Output, ToolError, format_duration};
use toolpost_sandbox::{Level, Workspace};

use super::call::{CallOutcome, directory, explained, internal_call, level, no_sampling, wall, with_stderr};
use super::catalog::Bound;
use super::process::{MAX_VALUES, Process, ProcessEvent};
use super::program::{self, Stamp, command_line, excerpt};
use super::settings::Settings;
use crate::failure;
use crate::protocol::frame::{CallFacts, CallerFrame, CallerMessage, ToolFrame, ToolMessage, Verb};
use crate::protocol::line::{Line, MAX_LINE};
use crate::protocol::outcome::{Answered, OutputFrame};

/// Maximum number of idle processes.
const MAX_IDLE: usize = 8;
/// A resident process has no timeout of its own; each call has one.
const LIFETIME: Duration = Duration::from_hours(24 * 365);
/// Maximum output of a call, in bytes and in lines.
const MAX_PRINTED: usize = 64 << 20;
const MAX_LINES: usize = 100_000;
/// The time to wait for the explanation of an internal error on stderr.
const EXPLANATION_WAIT: Duration = Duration::from_millis(200);
/// Maximum number of questions per call.
const MAX_QUESTIONS: usize = 1_000;

/// Calls share a process if they have the same owner, directory and level.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    path: PathBuf,
    stamp: Stamp,
    owner: Option<String>,
    directory: Option<PathBuf>,
    level: Level,
}

#[derive(Debug)]
struct Idle {
    process: Process,
    /// The id of its next call.
    next: u64,
    since: Instant,
}

/// The idle processes.
#[derive(Debug, Default)]
pub(super) struct Residents(Mutex<HashMap<Key, Idle>>);

impl Residents {
    fn take(&self, key: &Key) -> Option<Idle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key)
    }

    /// Stores a process for the next call, replacing another for the same key or the oldest one.
    fn put(&self, key: Key, idle: Idle) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= MAX_IDLE && !waiting.contains_key(&key) {
            let oldest = waiting.iter().min_by_key(|(_, idle)| idle.since).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| waiting.remove(&oldest));
        }
        waiting.insert(key, idle);
    }

    /// Runs a call on an idle process or a new one.
    pub(super) async fn run(
        &self,
        settings: &Settings,
        bound: &Bound,
        call: &Call,
        arguments: &Value,
    ) -> CallOutcome {
        let mut artifacts = Vec::new();
        let result = tokio::select! {
            result = self.attempt(settings, bound, call, arguments, &mut artifacts) => result,
            () = call.cancellation.cancelled() => Err(ToolError::cancelled(format!(
                "the caller cancelled `{}`",
                bound.spec.name
            ))),
        };
        CallOutcome { result, artifacts, sandbox: None }
    }

    async fn attempt(
        &self,
        settings: &Settings,
        bound: &Bound,
        call: &Call,
        arguments: &Value,
        artifacts: &mut Vec<Artifact>,
    ) -> Result<Output, ToolError> {
        let wall = wall(settings, bound, call)?;
        let key = Key {
            path: bound.program.path.clone(),
            stamp: bound.program.known.stamp.clone(),
            owner: call.scope.as_ref().map(|scope| scope.owner().to_owned()),
            directory: directory(settings, call),
            level: level(settings, call)?,
        };
        let mut idle = match self.take(&key) {
            // A process that died while idle is replaced.
            Some(idle) if !idle.process.is_finished() => idle,
            _ => start(settings, bound, &key).await?,
        };
        let id = idle.next;
        idle.next += 1;
        let process = &mut idle.process;
        let facts = facts(settings, call, wall);
        process.refresh().await;
        let exchanged = tokio::time::timeout(
            wall,
            exchange(process, id, settings, bound, call, arguments, &facts, artifacts),
        )
        .await;
        let answered = exchanged.map_err(|_| {
            ToolError::timeout(format!("`{}` timed out after {}", bound.spec.name, format_duration(wall)))
        })?;
        match answered {
            Ok(outcome) => {
                let applied = idle.process.apply().await?;
                idle.since = Instant::now();
                let result = match outcome.into_result() {
                    Err(error) => Err(with_explanation(error, &idle.process).await),
                    result => result,
                };
                self.put(key, idle);
                let mut output = result?;
                // A program's own report of model usage is unreliable and must not count against a run's limits.
                output.usage = None;
                failure::with_applied(
                    output.into_output()?,
                    applied.as_ref(),
                    &format!("`{}`", bound.spec.name),
                )
            }
            Err(error) => Err(ended(idle.process, bound, error).await),
        }
    }
}

/// Adds the explanation of an internal error, which may arrive on stderr after the answer.
async fn with_explanation(error: ToolError, process: &Process) -> ToolError {
    let Some(call) = internal_call(&error) else { return error };
    let until = Instant::now() + EXPLANATION_WAIT;
    loop {
        let stderr = process.errors();
        if String::from_utf8_lossy(&stderr).contains(call) || Instant::now() >= until {
            return explained(error, &stderr);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The error of a process without an answer; its exit explains more than the end of its output.
async fn ended(process: Process, bound: &Bound, error: Option<ToolError>) -> ToolError {
    let stderr = process.errors();
    if let Some(error) = error {
        return with_stderr(error, &stderr);
    }
    let name = format!("`{}`", bound.spec.name);
    let why = match process.end().await {
        Ok(outcome) => failure::of_verdict(&outcome.verdict, &name),
        Err(error) => Some(error),
    };
    let error = why.unwrap_or_else(|| {
        ToolError::dependency(format!("{name} ended before its result")).with("exit_code", 0)
    });
    with_stderr(error, &stderr)
}

async fn start(settings: &Settings, bound: &Bound, key: &Key) -> Result<Idle, ToolError> {
    let in_directory = |directory| settings.granted.workspace(directory);
    let workspace = key.directory.clone().map_or(Workspace::Fresh, in_directory);
    let sandbox = program::sandbox(settings, &key.path, LIFETIME, workspace).level(key.level);
    let line = command_line(settings, &key.path, ["--resident"]);
    let mut process = Process::start(sandbox, line, MAX_LINE, [u64::MAX; 2], settings).await?;
    let limit = settings.discovery_timeout;
    let hello = tokio::time::timeout(limit, hello(&mut process)).await.map_err(|_| {
        ToolError::timeout(format!(
            "`{} --resident` was not ready within {}",
            key.path.display(),
            format_duration(limit)
        ))
    })?;
    match hello {
        Ok(()) => Ok(Idle { process, next: 1, since: Instant::now() }),
        Err(error) => Err(ended(process, bound, error).await),
    }
}

/// Reads the first line. An error without a text means that the program exited.
async fn hello(process: &mut Process) -> Result<(), Option<ToolError>> {
    loop {
        let line = match process.next().await {
            None => return Err(None),
            Some(ProcessEvent::Line(Line::Whole(line))) => line,
            Some(ProcessEvent::Notice(_)) => continue,
            Some(ProcessEvent::Line(Line::TooLong { start })) => start,
        };
        let wrong = || {
            ToolError::dependency(format!(
                "the program's first line is not a `hello` frame; found {}",
                excerpt(&line, 200)
            ))
        };
        return match ToolFrame::read(&line) {
            Ok(ToolFrame { id: 0, message: ToolMessage::Hello { .. }, .. }) => Ok(()),
            Ok(_) => Err(Some(wrong())),
            Err(bad) => Err(Some(wrong().caused_by(bad.error.message().to_owned()))),
        };
    }
}

/// The facts that a call frame carries.
fn facts(settings: &Settings, call: &Call, wall: Duration) -> CallFacts {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mut serves = vec![Verb::Ask];
    if settings.sampling {
        serves.push(Verb::Sample);
    }
    if !settings.calls.is_empty() && call.port.takes_calls() {
        serves.push(Verb::Nested);
    }
    if call.port.takes_artifacts() {
        serves.push(Verb::Artifact);
    }
    CallFacts {
        deadline_ms: Some(millis(wall)),
        retries: call.options.retries,
        no_cache: call.options.no_cache,
        mock: call.options.mock,
        serves,
        ..CallFacts::from_call(call)
    }
}

/// Runs one call: sends its frame, answers questions, returns its result.
#[expect(clippy::too_many_arguments, reason = "they are the parts of one call")]
async fn exchange(
    process: &mut Process,
    id: u64,
    settings: &Settings,
    bound: &Bound,
    call: &Call,
    arguments: &Value,
    facts: &CallFacts,
    artifacts: &mut Vec<Artifact>,
) -> Result<Answered<OutputFrame>, Option<ToolError>> {
    let message = CallerMessage::Call {
        tool: bound.original.clone(),
        arguments: arguments.clone(),
        facts: Box::new(facts.clone()),
    };
    send(process, id, message)?;
    let (mut lines, mut bytes, mut questions) = (0, 0, 0);
    loop {
        let line = match process.next().await {
            None => return Err(None),
            Some(ProcessEvent::Notice(_)) => continue,
            Some(ProcessEvent::Line(Line::TooLong { .. })) => {
                return Err(Some(ToolError::limit(format!(
                    "a frame has more than 32 MiB or {MAX_VALUES} values"
                ))));
            }
            Some(ProcessEvent::Line(Line::Whole(line))) => line,
        };
        (lines, bytes) = (lines + 1, bytes + line.len());
        if lines > MAX_LINES || bytes > MAX_PRINTED {
            let name = &bound.spec.name;
            return Err(Some(ToolError::limit(format!("`{name}` printed more than 100000 lines or 64 MiB"))));
        }
        // Ignore stray output and frames of earlier calls.
        let Ok(frame) = ToolFrame::read(&line) else { continue };
        if frame.id != id {
            continue;
        }
        let (request, answer) = match frame.message {
            ToolMessage::Progress(progress) => {
                call.port.progress(call.id, progress);
                continue;
            }
            ToolMessage::Log(line) => {
                call.port.log(call.id, line);
                continue;
            }
            ToolMessage::Result { outcome, .. } => return Ok(outcome),
            ToolMessage::Artifact { request, artifact } => {
                (request, answer(deliver(call, artifact, artifacts).await))
            }
            ToolMessage::Ask { request, question } => {
                (request, answer(call.port.ask(call.id, &question).await))
            }
            ToolMessage::Sample { request, .. } if !facts.serves.contains(&Verb::Sample) => {
                (request, Answered::Error(no_sampling()))
            }
            ToolMessage::Sample { request, prompt } => {
                (request, answer(call.port.sample(call.id, &prompt).await))
            }
            ToolMessage::Nested { request, tool, arguments } => {
                (request, answer(nested(settings, call, &tool, &arguments).await))
            }
            ToolMessage::State { request, .. } => {
                let error = ToolError::precondition("executables cannot use documents of their caller");
                (request, Answered::Error(error))
            }
            _ => continue,
        };
        questions += 1;
        if questions > MAX_QUESTIONS {
            return Err(Some(ToolError::limit(format!("a call may ask at most {MAX_QUESTIONS} questions"))));
        }
        send(process, id, CallerMessage::Answer { request, answer })?;
    }
}

fn send(process: &mut Process, id: u64, message: CallerMessage) -> Result<(), Option<ToolError>> {
    let mut line = CallerFrame::new(id, message).to_line().map_err(Some)?;
    line.pop();
    process.write(line).map_err(Some)
}

fn answer<T: Serialize>(result: Result<T, ToolError>) -> Answered<Value> {
    result.and_then(|value| serde_json::to_value(value).map_err(ToolError::from)).into()
}

/// Calls a tool of the caller for the program.
async fn nested(
    settings: &Settings,
    call: &Call,
    tool: &str,
    arguments: &Value,
) -> Result<OutputFrame, ToolError> {
    if !settings.calls.iter().any(|name| name == tool) {
        return Err(ToolError::permission(format!("the program may not call `{tool}`"))
            .suggest("Add the tool to `calls` of the connection."));
    }
    Ok(OutputFrame::from(&call.port.call(call.id, tool, arguments).await?))
}

/// Delivers a file whose bytes are in the frame. A path in a frame is never read.
async fn deliver(
    call: &Call,
    artifact: crate::protocol::outcome::ArtifactFrame,
    delivered: &mut Vec<Artifact>,
) -> Result<(), ToolError> {
    let name = super::notices::file_name(&artifact.name)?;
    if artifact.data.is_none() {
        return Err(ToolError::precondition("a file's bytes must be in its frame"));
    }
    let artifact = Artifact { name, ..artifact.into_artifact()? };
    call.port.artifact(call.id, artifact.clone()).await?;
    delivered.push(artifact.without_data());
    Ok(())
}
