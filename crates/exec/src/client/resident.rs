//! Programs that stay: one process for many calls, one call at a time.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use toolpost_core::{Artifact, Call, Output, ToolError, format_duration};
use toolpost_sandbox::{Level, Workspace};

use super::call::{explained, folder, internal_call, level, no_sampling, wall, with_stderr};
use super::catalog::Bound;
use super::process::{Heard, MAX_VALUES, Process};
use super::program::{self, Stamp, command_line, excerpt, of_verdict};
use super::settings::Settings;
use crate::protocol::frame::{CallFacts, CallerFrame, CallerMessage, ToolFrame, ToolMessage, Verb};
use crate::protocol::line::{Line, MAX_LINE};
use crate::protocol::outcome::Answered;

/// The most processes that wait for their next call.
const MAX_IDLE: usize = 8;
/// A process lives as long as it is needed: each call has its own limit of time.
const LIFETIME: Duration = Duration::from_hours(24 * 365);
/// The most that one call may print, in bytes, and in lines.
const MAX_PRINTED: usize = 64 << 20;
const MAX_LINES: usize = 100_000;
/// How long the causes of an internal error may take after it.
const EXPLAINED: Duration = Duration::from_millis(200);
/// How many questions one call may have.
const MAX_QUESTIONS: usize = 1_000;

/// Who may share a process: calls of the same owner in the same folder at the same level.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    path: PathBuf,
    stamp: Stamp,
    owner: Option<String>,
    folder: Option<PathBuf>,
    level: Level,
}

#[derive(Debug)]
struct Idle {
    process: Process,
    /// The id of its next call.
    next: u64,
    since: Instant,
}

/// The processes that wait.
#[derive(Debug, Default)]
pub(super) struct Residents(Mutex<HashMap<Key, Idle>>);

/// What a call came to at a process that stays.
pub(super) struct Stayed {
    pub(super) result: Result<Output, ToolError>,
    pub(super) artifacts: Vec<Artifact>,
}

impl Residents {
    fn take(&self, key: &Key) -> Option<Idle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key)
    }

    /// Keeps a process for the next call. If another one is there already, or there are too many, one goes.
    fn keep(&self, key: Key, idle: Idle) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= MAX_IDLE && !waiting.contains_key(&key) {
            let oldest = waiting.iter().min_by_key(|(_, idle)| idle.since).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| waiting.remove(&oldest));
        }
        waiting.insert(key, idle);
    }

    /// Runs a call at the process that waits for it, or at a new one, which waits afterwards.
    pub(super) async fn run(
        &self,
        settings: &Settings,
        bound: &Bound,
        call: &Call,
        arguments: &Value,
    ) -> Stayed {
        let mut artifacts = Vec::new();
        let result = tokio::select! {
            result = self.attempt(settings, bound, call, arguments, &mut artifacts) => result,
            () = call.cancellation.cancelled() => Err(ToolError::cancelled(format!(
                "the caller asked to stop, and `{}` was ended",
                bound.spec.name
            ))),
        };
        Stayed { result, artifacts }
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
            folder: folder(settings, call),
            level: level(settings, call)?,
        };
        let mut idle = match self.take(&key) {
            // One that died while it waited is replaced.
            Some(idle) if !idle.process.is_finished() => idle,
            _ => start(settings, bound, &key).await?,
        };
        let id = idle.next;
        idle.next += 1;
        let process = &mut idle.process;
        let facts = facts(settings, call, wall);
        process.refresh().await;
        let talked =
            tokio::time::timeout(wall, talk(process, id, bound, call, arguments, &facts, artifacts)).await;
        let answered = talked.map_err(|_| {
            ToolError::timeout(format!("`{}` was not done within {}", bound.spec.name, format_duration(wall)))
        })?;
        match answered {
            Ok(outcome) => {
                idle.process.apply().await?;
                idle.since = Instant::now();
                let result = match outcome.into_result() {
                    Err(error) => Err(with_explanation(error, &idle.process).await),
                    result => result,
                };
                self.keep(key, idle);
                let mut output = result?;
                // What a program says of its own use of models is no account: it would end a run that has a limit, or
                // pass for what was paid.
                output.usage = None;
                output.into_output()
            }
            Err(error) => Err(ended(idle.process, bound, error).await),
        }
    }
}

/// An internal error with its causes, which are on standard error: another stream than that of the answer, so that they
/// may come a little later.
async fn with_explanation(error: ToolError, process: &Process) -> ToolError {
    let Some(call) = internal_call(&error) else { return error };
    let until = Instant::now() + EXPLAINED;
    loop {
        let stderr = process.errors();
        if String::from_utf8_lossy(&stderr).contains(call) || Instant::now() >= until {
            return explained(error, &stderr);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Why a process that gave no answer did not: its own end says more than that of its output.
async fn ended(process: Process, bound: &Bound, error: Option<ToolError>) -> ToolError {
    let stderr = process.errors();
    if let Some(error) = error {
        return with_stderr(error, &stderr);
    }
    let name = format!("`{}`", bound.spec.name);
    let why = match process.end().await {
        Ok(outcome) => of_verdict(&outcome.verdict, &name),
        Err(error) => Some(error),
    };
    let error = why.unwrap_or_else(|| {
        ToolError::dependency(format!("{name} ended before its result")).with("exit_code", 0)
    });
    with_stderr(error, &stderr)
}

async fn start(settings: &Settings, bound: &Bound, key: &Key) -> Result<Idle, ToolError> {
    let workspace = key.folder.clone().map_or(Workspace::Fresh, Workspace::Host);
    let sandbox = program::sandbox(settings, &key.path, LIFETIME, workspace).level(key.level);
    let line = command_line(settings, &key.path, ["--resident"]);
    let mut process = Process::start(sandbox, line, MAX_LINE, [u64::MAX; 2], settings).await?;
    let limit = settings.discovery_timeout;
    let hello = tokio::time::timeout(limit, hello(&mut process)).await.map_err(|_| {
        ToolError::timeout(format!(
            "`{} --resident` did not begin within {}",
            key.path.display(),
            format_duration(limit)
        ))
    })?;
    match hello {
        Ok(()) => Ok(Idle { process, next: 1, since: Instant::now() }),
        Err(error) => Err(ended(process, bound, error).await),
    }
}

/// The first line. An error without a text means that the program has ended.
async fn hello(process: &mut Process) -> Result<(), Option<ToolError>> {
    loop {
        let line = match process.next().await {
            None => return Err(None),
            Some(Heard::Line(Line::Whole(line))) => line,
            Some(Heard::Notice(_)) => continue,
            Some(Heard::Line(Line::TooLong { start })) => start,
        };
        let wrong = || {
            ToolError::dependency(format!(
                "the program's first line is no `hello` frame: found {}",
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

/// What travels with a call.
fn facts(settings: &Settings, call: &Call, wall: Duration) -> CallFacts {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mut serves = vec![Verb::Ask];
    if settings.sampling {
        serves.push(Verb::Sample);
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
        ..CallFacts::of(call)
    }
}

/// One call: its frame, what the program asks meanwhile, and its result.
async fn talk(
    process: &mut Process,
    id: u64,
    bound: &Bound,
    call: &Call,
    arguments: &Value,
    facts: &CallFacts,
    artifacts: &mut Vec<Artifact>,
) -> Result<Answered<crate::protocol::outcome::OutputFrame>, Option<ToolError>> {
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
            Some(Heard::Notice(_)) => continue,
            Some(Heard::Line(Line::TooLong { .. })) => {
                return Err(Some(ToolError::limit(format!(
                    "a frame is longer than 32 MiB or has more than {MAX_VALUES} values"
                ))));
            }
            Some(Heard::Line(Line::Whole(line))) => line,
        };
        (lines, bytes) = (lines + 1, bytes + line.len());
        if lines > MAX_LINES || bytes > MAX_PRINTED {
            let name = &bound.spec.name;
            return Err(Some(ToolError::limit(format!("`{name}` told more than 100000 lines or 64 MiB"))));
        }
        // A line that is no frame, such as a stray print, and what belongs to a call that is over, means nothing here.
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
                (request, answer(take(call, artifact, artifacts).await))
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
            ToolMessage::Nested { request, .. } => (request, refused("other tools")),
            ToolMessage::State { request, .. } => (request, refused("documents")),
            _ => continue,
        };
        questions += 1;
        if questions > MAX_QUESTIONS {
            return Err(Some(ToolError::limit(format!("a call may ask {MAX_QUESTIONS} times"))));
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

fn refused(what: &str) -> Answered<Value> {
    Answered::Error(ToolError::precondition(format!("executables cannot reach {what} of their caller")))
}

/// Takes a file that came inside its frame. What lies in a folder of the program is not read on its behalf.
async fn take(
    call: &Call,
    artifact: crate::protocol::outcome::ArtifactFrame,
    taken: &mut Vec<Artifact>,
) -> Result<(), ToolError> {
    let name = super::notices::file_name(&artifact.name)?;
    if artifact.data.is_none() {
        return Err(ToolError::precondition("only files whose bytes are in the frame are taken"));
    }
    let artifact = Artifact { name, ..artifact.into_artifact()? };
    call.port.artifact(call.id, artifact.clone()).await?;
    taken.push(artifact.without_data());
    Ok(())
}
