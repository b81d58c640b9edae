//! One call of dialect 0.1 or 0.2: one process, lines in both directions.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost_core::{
    Answer, Artifact, Call, Code, Evidence, Hint, LogLevel, Mode, Output, Question, ToolError,
    format_duration,
};
use toolpost_sandbox::{Level, Outcome, RunEvidence, Stdin, Verdict, Workspace};

use super::catalog::Bound;
use super::notices::{Notices, has_data};
use super::process::{MAX_VALUES, Process, ProcessEvent};
use super::program::{self, Dialect, command_line, excerpt};
use super::settings::Settings;
use crate::failure;
use crate::protocol::dialect::{Notice, SampleAnswer, SampleLine, SessionLine, ToolLine};
use crate::protocol::explained::{self, Explained};
use crate::protocol::line::Line;
use crate::protocol::outcome::read_envelope;

/// Maximum length of a line of standard output, in bytes.
const MAX_LINE: usize = 4 << 20;
/// Maximum length of JSON arguments on a command line, in bytes: the kernel's limit is 128 KiB.
const MAX_ARGUMENT: usize = 120 << 10;
/// Maximum size of arguments over standard input, in bytes: the limit of the server half.
const MAX_INPUT: usize = 16 << 20;
/// Maximum output of a call, in bytes: standard output and stderr.
const MAX_PRINTED: u64 = 64 << 20;
const MAX_ERRORS: u64 = 16 << 20;
/// The time that a program may run after its result.
const GRACE: Duration = Duration::from_secs(1);
/// Extra time for the sandbox to report a timeout.
const REPORT_GRACE: Duration = Duration::from_secs(5);
/// Maximum number of questions and sampling requests per call.
const MAX_QUESTIONS: usize = 1_000;
/// Maximum number of lines per call, which bounds the caller's work.
const MAX_LINES: usize = 100_000;
/// Maximum retained output that is not a protocol line, in bytes.
const MAX_TEXT: usize = 1 << 20;

/// The outcome of a call, for its record.
#[derive(Debug)]
pub(super) struct CallOutcome {
    pub(super) result: Result<Output, ToolError>,
    pub(super) artifacts: Vec<Artifact>,
    pub(super) sandbox: Option<Value>,
}

/// The wall time of a call.
pub(super) fn wall(settings: &Settings, bound: &Bound, call: &Call) -> Result<Duration, ToolError> {
    let mut wall = if bound.spec.mode == Mode::Session { settings.session_timeout } else { settings.timeout };
    if let Some(toolpost_core::Timeout::After(limit)) = bound.spec.policy.timeout {
        wall = wall.min(limit);
    }
    if let Some(limit) = call.options.timeout {
        wall = wall.min(limit);
    }
    if let Some(deadline) = call.deadline {
        wall = wall.min(deadline.saturating_duration_since(Instant::now()));
    }
    if wall.is_zero() {
        return Err(ToolError::timeout("the call has no time left"));
    }
    Ok(wall)
}

/// The host directory that the call works in.
pub(super) fn directory(settings: &Settings, call: &Call) -> Option<PathBuf> {
    if let Some(granted) = &settings.granted.grants().workdir {
        return Some(granted.clone());
    }
    let scope = call.scope.as_ref().and_then(|scope| scope.working_dir());
    call.options.working_dir.clone().or_else(|| scope.map(std::path::Path::to_owned))
}

/// The stricter of the operator's level and the call's.
pub(super) fn level(settings: &Settings, call: &Call) -> Result<Level, ToolError> {
    let requested = call.options.level.as_deref().map(str::parse::<Level>).transpose();
    Ok(requested
        .map_err(failure::of_sandbox)?
        .map_or(settings.level, |requested| settings.level.max(requested)))
}

/// The invocation of a program: its arguments, its standard input, and whether the input stays open.
struct Invocation {
    arguments: Vec<String>,
    input: Option<Vec<u8>>,
    is_open: bool,
}

fn invocation(settings: &Settings, bound: &Bound, arguments: &Value) -> Result<Invocation, ToolError> {
    let mode = bound.spec.mode;
    let text = arguments.to_string();
    let dialect = bound.program.known.dialect;
    if dialect == Dialect::Command {
        let text = json!({ "command": bound.original, "params": arguments }).to_string();
        if text.len() > MAX_ARGUMENT {
            return Err(too_large(bound, text.len(), MAX_ARGUMENT));
        }
        let is_open = mode == Mode::Session || settings.sampling;
        return Ok(Invocation { arguments: vec![text], input: None, is_open });
    }
    let mut words = vec![bound.original.clone()];
    let takes_input = dialect == Dialect::Extended && mode != Mode::Session;
    // Other users of the machine can read command lines.
    let by_input = text.len() > MAX_ARGUMENT || (takes_input && !bound.spec.sensitive.is_empty());
    let limit = if takes_input { MAX_INPUT } else { MAX_ARGUMENT };
    if text.len() > limit {
        return Err(too_large(bound, text.len(), limit));
    }
    words.push(if by_input { "-".to_owned() } else { text.clone() });
    match mode {
        Mode::Unary => {}
        Mode::Streaming => words.push("--stream".to_owned()),
        Mode::Session => words.push("--session".to_owned()),
    }
    // Without sampling, a program that prints a request gets the host's error instead of advice on its own options.
    let prints_requests = settings.sampling || takes_input && mode != Mode::Session;
    if prints_requests && !by_input {
        words.extend(["--sample-via".to_owned(), "stdin".to_owned()]);
    }
    let is_open = !by_input && (mode == Mode::Session || settings.sampling);
    let input = by_input.then(|| text.into_bytes());
    Ok(Invocation { arguments: words, input, is_open })
}

fn too_large(bound: &Bound, size: usize, limit: usize) -> ToolError {
    ToolError::limit(format!(
        "the arguments of `{}` have {size} bytes of JSON; `{}` accepts {limit} on its command line",
        bound.spec.name,
        bound.program.origin.display()
    ))
    .suggest("Write large data to a file in the working directory and pass its path.")
}

/// The output of a program so far.
#[derive(Default)]
struct Received {
    envelope: Option<Value>,
    /// The last JSON object that is neither an envelope nor a protocol line.
    other: Option<Value>,
    /// Lines that are not JSON objects; together they may be one.
    text: Vec<u8>,
    questions: usize,
    declined: bool,
}

/// Runs a call.
pub(super) async fn run(settings: &Settings, bound: &Bound, call: &Call, arguments: &Value) -> CallOutcome {
    let mut notices = Notices { call, directory: directory(settings, call), artifacts: Vec::new() };
    let mut sandbox = None;
    let result = tokio::select! {
        result = exchange(settings, bound, arguments, &mut notices, &mut sandbox) => result,
        () = call.cancellation.cancelled() => Err(ToolError::cancelled(format!(
            "the caller cancelled `{}`",
            bound.spec.name
        ))),
    };
    let (pending, delivered): (Vec<_>, Vec<_>) = notices.artifacts.into_iter().partition(has_data);
    let mut artifacts = delivered;
    artifacts.extend(pending.iter().cloned().map(Artifact::without_data));
    let result = result.map(|mut output| {
        output.artifacts.extend(pending);
        output
    });
    CallOutcome { result, artifacts, sandbox }
}

async fn exchange(
    settings: &Settings,
    bound: &Bound,
    arguments: &Value,
    notices: &mut Notices<'_>,
    evidence: &mut Option<Value>,
) -> Result<Output, ToolError> {
    let call = notices.call;
    let wall = wall(settings, bound, call)?;
    let Invocation { arguments, input, is_open } = invocation(settings, bound, arguments)?;
    let in_directory = |directory| settings.granted.workspace(directory);
    let workspace = notices.directory.clone().map_or(Workspace::Fresh, in_directory);
    let mut sandbox = program::sandbox(settings, &bound.program.path, wall, workspace);
    sandbox = sandbox.level(level(settings, call)?);
    if let Some(input) = input {
        sandbox = sandbox.stdin(Stdin::Bytes(input));
    }
    let program = command_line(settings, &bound.program.path, arguments.iter().map(String::as_str));
    let max = [MAX_PRINTED, MAX_ERRORS].map(|max| settings.limits.output_total.min(max));
    let mut process = Process::start(sandbox, program, MAX_LINE, max, settings).await?;
    if !is_open {
        process.close_input();
    }
    let mut received = Received::default();
    let all = wall.saturating_add(REPORT_GRACE);
    let ended =
        tokio::time::timeout(all, read_lines(&mut process, settings, bound, notices, &mut received)).await;
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(with_stderr(error, &process.errors())),
        Err(_) => {
            return Err(ToolError::timeout(format!(
                "`{}` timed out after {}",
                bound.spec.name,
                format_duration(wall)
            )));
        }
    }
    let (errors, flooded) = (process.errors(), process.flooded());
    let outcome = process.end().await?;
    *evidence = Some(RunEvidence::from(&outcome).to_value());
    let result = conclude(bound, received, &outcome, flooded);
    let name = format!("`{}`", bound.spec.name);
    result
        .and_then(|output| failure::with_applied(output, outcome.applied.as_ref(), &name))
        .map_err(|error| explained(error, &errors))
        .map(|output| output.with_evidence(Evidence { sandbox: evidence.clone(), ..Evidence::default() }))
}

/// Adds a program's stderr to its error for the program's author: the explanation of an internal error, else its end.
pub(super) fn explained(error: ToolError, stderr: &[u8]) -> ToolError {
    let call = internal_call(&error);
    let text = String::from_utf8_lossy(stderr);
    match call.and_then(|call| Some((call, explained::read(&text, call)?))) {
        Some((call, Explained { before, message, causes })) => {
            let error = ToolError::internal(message).with("call", call).with_causes(causes);
            with_stderr(error, before.as_bytes())
        }
        None => with_stderr(error, stderr),
    }
}

/// The call id under which a program explains its internal error.
pub(super) fn internal_call(error: &ToolError) -> Option<&str> {
    if error.code() != Code::Internal {
        return None;
    }
    error.context().get("call")?.as_str()
}

/// Adds the end of stderr, for the program's author.
pub(super) fn with_stderr(error: ToolError, stderr: &[u8]) -> ToolError {
    let stderr = stderr.trim_ascii();
    if stderr.is_empty() || error.context().contains_key("stderr") {
        return error;
    }
    let end = stderr.get(stderr.len().saturating_sub(2_000)..).unwrap_or_default();
    error.with("stderr", excerpt(end, 2_000))
}

/// Reads lines until the end, and answers the questions among them.
async fn read_lines(
    process: &mut Process,
    settings: &Settings,
    bound: &Bound,
    notices: &mut Notices<'_>,
    received: &mut Received,
) -> Result<(), ToolError> {
    let mut lines = 0;
    loop {
        let next = if received.envelope.is_some() {
            match tokio::time::timeout(GRACE, process.next()).await {
                Ok(next) => next,
                Err(_) => {
                    // It printed its result but does not exit.
                    notices.log(LogLevel::Warn, "the program did not exit after its result and was killed");
                    process.kill();
                    return Ok(());
                }
            }
        } else {
            process.next().await
        };
        lines += 1;
        if lines > MAX_LINES && next.is_some() {
            return Err(ToolError::limit(format!(
                "`{}` printed more than {MAX_LINES} lines",
                bound.spec.name
            ))
            .suggest("Let it write large results to a file and print the file's name."));
        }
        let line = match next {
            None => return Ok(()),
            Some(ProcessEvent::Notice(notice)) => {
                apply_changes(process, &notice).await?;
                notices.forward(notice).await;
                continue;
            }
            Some(ProcessEvent::Line(Line::TooLong { .. })) => {
                return Err(ToolError::limit(format!(
                    "`{}` printed a line above {} MiB or {MAX_VALUES} values",
                    bound.spec.name,
                    MAX_LINE >> 20
                ))
                .suggest("Let it write large results to a file and print the file's name."));
            }
            Some(ProcessEvent::Line(Line::Whole(line))) => line,
        };
        if line.trim_ascii().is_empty() {
            continue;
        }
        match ToolLine::read(&line) {
            Some(ToolLine::Notice(notice)) => {
                apply_changes(process, &notice).await?;
                notices.forward(notice).await;
            }
            Some(ToolLine::Sample(_)) if !settings.sampling => return Err(no_sampling()),
            Some(ToolLine::Sample(request)) => sample(process, notices, received, request).await?,
            Some(ToolLine::Session(SessionLine::SessionEnd { .. })) if bound.spec.mode == Mode::Session => {}
            Some(ToolLine::Session(line)) if bound.spec.mode == Mode::Session => {
                let value = serde_json::to_value(line).unwrap_or_default();
                ask(process, bound, notices, received, &value).await?;
            }
            Some(ToolLine::Session(line)) => received.other = serde_json::to_value(line).ok(),
            Some(ToolLine::Envelope(envelope)) => received.envelope = Some(envelope),
            Some(ToolLine::Other(value))
                if bound.spec.mode == Mode::Session
                    && received.envelope.is_none()
                    && !is_domain_end(&value) =>
            {
                ask(process, bound, notices, received, &value).await?;
            }
            Some(ToolLine::Other(value)) => received.other = Some(value),
            None => {
                let room = MAX_TEXT.saturating_sub(received.text.len());
                received.text.extend_from_slice(line.get(..line.len().min(room)).unwrap_or_default());
                received.text.push(b'\n');
            }
        }
    }
}

/// Applies the program's changes before the host reads a file that the program announces.
async fn apply_changes(process: &Process, notice: &Notice) -> Result<(), ToolError> {
    if matches!(notice, Notice::Artifact { .. }) { process.apply().await.map(drop) } else { Ok(()) }
}

/// Whether a line of a session only reports its status.
fn is_domain_end(value: &Value) -> bool {
    value.get("type").is_none() && value.get("status").is_some()
}

fn count(received: &mut Received) -> Result<(), ToolError> {
    received.questions += 1;
    if received.questions > MAX_QUESTIONS {
        return Err(ToolError::limit(format!("a call may ask at most {MAX_QUESTIONS} questions")));
    }
    Ok(())
}

/// The error if the operator disabled sampling for programs.
pub(super) fn no_sampling() -> ToolError {
    ToolError::precondition("sampling is disabled for programs").suggest(Hint::NameModel)
}

async fn sample(
    process: &mut Process,
    notices: &Notices<'_>,
    received: &mut Received,
    line: SampleLine,
) -> Result<(), ToolError> {
    count(received)?;
    // The dialect has no error line: a missing capability ends the call.
    let sample = notices.call.port.sample(notices.call.id, &line.request).await?;
    process.write(serde_json::to_vec(&SampleAnswer::new(line.id, sample))?)
}

/// Asks a question of a session. The answer is an object; any other value is wrapped in one.
async fn ask(
    process: &mut Process,
    bound: &Bound,
    notices: &Notices<'_>,
    received: &mut Received,
    line: &Value,
) -> Result<(), ToolError> {
    count(received)?;
    let text =
        |key: &str| line.get(key).and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty());
    let message = text("message").or_else(|| text("question")).map(str::to_owned);
    let message = message.or_else(|| {
        let mut fields = line.as_object()?.clone();
        let prompt = fields.remove("prompt");
        fields.remove("type");
        let prompt = prompt.as_ref().and_then(Value::as_str).map(str::to_owned);
        if fields.is_empty() { prompt } else { Some(Value::Object(fields).to_string()) }
    });
    let message = excerpt(message.unwrap_or_default().as_bytes(), 8_000);
    let question = match line.get("schema").filter(|schema| schema.is_object()) {
        Some(schema) => Question::with_schema(message, schema.clone()),
        None => Question::text(message),
    };
    let answer = match notices.call.port.ask(notices.call.id, &question).await? {
        Answer::Given { value } => answer(value, bound.program.known.dialect),
        Answer::Declined if received.declined => {
            return Err(ToolError::cancelled("the caller ended the session, but the program asked again"));
        }
        Answer::Declined => {
            received.declined = true;
            json!({ "action": "quit" })
        }
    };
    process.write(serde_json::to_vec(&answer)?)
}

/// The line for an answer: an object, or text that parses as one, unchanged; any other value under the common keys.
fn answer(value: Value, dialect: Dialect) -> Value {
    if value.is_object() {
        return value;
    }
    if let Some(object) = value.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok())
        && object.is_object()
    {
        return object;
    }
    match dialect {
        Dialect::Extended => json!({ "value": value }),
        Dialect::Original | Dialect::Command => json!({ "action": value, "input": value, "value": value }),
    }
}

/// Derives the result of a call from the output and the exit of the program.
fn conclude(
    bound: &Bound,
    mut received: Received,
    outcome: &Outcome,
    flooded: Option<u64>,
) -> Result<Output, ToolError> {
    let name = format!("`{}`", bound.spec.name);
    if let Some(printed) = flooded {
        return Err(ToolError::limit(format!("{name} printed more than {} MiB", printed >> 20))
            .suggest("Let it write large results to a file and print the file's name."));
    }
    // A program cancelled after its result was killed by `read_lines`.
    let is_over = received.envelope.is_some() && outcome.verdict == Verdict::Cancelled;
    let bad_end = if is_over { None } else { failure::of_verdict(&outcome.verdict, &name) };
    if received.envelope.is_none() && received.other.is_none() && !received.text.is_empty() {
        // An envelope may span several lines.
        received.envelope = serde_json::from_slice::<Value>(&received.text).ok().filter(Value::is_object);
    }
    let domain = received.envelope.as_ref().is_some_and(|envelope| !is_certain(envelope));
    if domain {
        received.other = received.envelope.take();
    }
    let Some(envelope) = received.envelope else {
        if let Some(error) = bad_end {
            return Err(error);
        }
        let failed = |message: String| Err(ToolError::dependency(message).with("exit_code", 0));
        if bound.spec.mode == Mode::Streaming && !domain {
            return failed(format!("{name} ended before its result"));
        }
        // A tool's own result with a `status` is returned unchanged.
        return match received.other {
            Some(mut value) if value.get("status").is_some() => {
                if value.get("type").and_then(Value::as_str) == Some("result")
                    && let Some(fields) = value.as_object_mut()
                {
                    fields.remove("type");
                }
                Ok(Output::json(value))
            }
            Some(value) => failed(format!(
                "{name} printed no envelope; expected an object with `status`, found {}",
                excerpt(value.to_string().as_bytes(), 200)
            )),
            None if received.text.is_empty() => failed(format!(
                "{name} printed nothing; expected an envelope such as {{\"status\": \"success\", \"result\": …}}"
            )),
            None => failed(format!(
                "{name} printed no envelope: {}; found {}",
                serde_json::from_slice::<Value>(received.text.trim_ascii())
                    .map_or_else(|error| error.to_string(), |_| "not an object".to_owned()),
                excerpt(received.text.trim_ascii(), 200)
            )),
        };
    };
    // A value that is not an object is nested in `result` again. A tool whose schema has the type object returns objects.
    let gives_objects = bound
        .spec
        .output_schema
        .as_ref()
        .is_some_and(|schema| schema.as_value().get("type").and_then(Value::as_str) == Some("object"));
    let output = read_envelope(&envelope, !gives_objects)?;
    match bad_end {
        // Our own programs exit with an error status after a partial failure.
        Some(_) if output.partial.is_some() && matches!(outcome.verdict, Verdict::Exit { .. }) => Ok(output),
        Some(error) => {
            let message = format!("{}, after it had reported success", error.message());
            let failed = ToolError::new(error.code(), message).suggest("Do not trust its result.");
            Err(error.context().iter().fold(failed, |failed, (fact, value)| failed.with(fact, value.clone())))
        }
        None => Ok(output),
    }
}

/// Whether a value is certainly an envelope. A `success` with other keys and without a result is a tool's own result.
fn is_certain(envelope: &Value) -> bool {
    let Some(fields) = envelope.as_object() else { return false };
    match fields.get("status").and_then(Value::as_str) {
        Some("success") => {
            fields.contains_key("result")
                || fields.keys().all(|key| matches!(key.as_str(), "status" | "type"))
        }
        Some("error") => fields.contains_key("error") || fields.contains_key("errors"),
        Some("partial") => fields.contains_key("result") || fields.contains_key("errors"),
        _ => false,
    }
}
