//! One call of dialect 0.1 or 0.2: one process, lines both ways.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost_core::{
    Answer, Artifact, Call, Code, Evidence, LogLevel, Mode, Output, Question, ToolError, format_duration,
};
use toolpost_sandbox::{Level, Outcome, Stdin, Verdict, Workspace};

use super::catalog::Bound;
use super::notices::{Notices, has_data};
use super::process::{Heard, MAX_VALUES, Process};
use super::program::{self, Dialect, command_line, excerpt, of_verdict};
use super::settings::Settings;
use crate::protocol::dialect::{Notice, SampleAnswer, SampleLine, SessionLine, ToolLine};
use crate::protocol::explained::{self, Explained};
use crate::protocol::line::Line;
use crate::protocol::outcome::read_envelope;

/// The longest line of standard output, in bytes.
const MAX_LINE: usize = 4 << 20;
/// The longest JSON text of arguments that goes on a command line, in bytes: the kernel takes 128 KiB.
const MAX_ARGUMENT: usize = 120 << 10;
/// The largest arguments over standard input, in bytes: what the server half reads.
const MAX_INPUT: usize = 16 << 20;
/// The most that a call may print, in bytes: results, and what only helps to find defects.
const MAX_PRINTED: u64 = 64 << 20;
const MAX_ERRORS: u64 = 16 << 20;
/// How long a program may live after its result.
const GRACE: Duration = Duration::from_secs(1);
/// What may pass between the end of a program's time and the news of it.
const LATE: Duration = Duration::from_secs(5);
/// How many questions and prompts one call may have.
const MAX_QUESTIONS: usize = 1_000;
/// How many lines one call may print, so that no program keeps its caller busy for long.
const MAX_LINES: usize = 100_000;
/// How much of an output that is no line of the protocol is kept.
const KEPT: usize = 1 << 20;

/// What came of a call, for its record.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) result: Result<Output, ToolError>,
    pub(super) artifacts: Vec<Artifact>,
    pub(super) sandbox: Option<Value>,
}

/// The time that a call has.
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
        return Err(ToolError::timeout("no time is left for the call"));
    }
    Ok(wall)
}

/// The host's folder that the call works in.
pub(super) fn folder(settings: &Settings, call: &Call) -> Option<PathBuf> {
    if let Some(granted) = &settings.granted.grants().workdir {
        return Some(granted.clone());
    }
    let scope = call.scope.as_ref().and_then(|scope| scope.working_dir());
    call.options.working_dir.clone().or_else(|| scope.map(std::path::Path::to_owned))
}

/// The stricter of the operator's level and the call's.
pub(super) fn level(settings: &Settings, call: &Call) -> Result<Level, ToolError> {
    let asked = call.options.level.as_deref().map(str::parse::<Level>).transpose();
    Ok(asked.map_err(program::of_sandbox)?.map_or(settings.level, |asked| settings.level.max(asked)))
}

/// How the program is told what to do: its arguments, its standard input, and whether that stays open.
struct Told {
    arguments: Vec<String>,
    input: Option<Vec<u8>>,
    is_open: bool,
}

fn told(settings: &Settings, bound: &Bound, arguments: &Value) -> Result<Told, ToolError> {
    let mode = bound.spec.mode;
    let text = arguments.to_string();
    let dialect = bound.program.known.dialect;
    if dialect == Dialect::Command {
        let text = json!({ "command": bound.original, "params": arguments }).to_string();
        if text.len() > MAX_ARGUMENT {
            return Err(too_large(bound, text.len(), MAX_ARGUMENT));
        }
        let is_open = mode == Mode::Session || settings.sampling;
        return Ok(Told { arguments: vec![text], input: None, is_open });
    }
    let mut words = vec![bound.original.clone()];
    let takes_input = dialect == Dialect::Extended && mode != Mode::Session;
    // Command lines are seen by others on this machine.
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
    if settings.sampling && !by_input {
        words.extend(["--sample-via".to_owned(), "stdin".to_owned()]);
    }
    let is_open = !by_input && (mode == Mode::Session || settings.sampling);
    let input = by_input.then(|| text.into_bytes());
    Ok(Told { arguments: words, input, is_open })
}

fn too_large(bound: &Bound, size: usize, limit: usize) -> ToolError {
    ToolError::limit(format!(
        "the arguments of `{}` have {size} bytes of JSON, and `{}` takes {limit} on its command line",
        bound.spec.name,
        bound.program.origin.path.display()
    ))
    .suggest("Write large data to a file of the working folder and pass its path.")
}

/// What the program has printed so far.
#[derive(Default)]
struct Heap {
    envelope: Option<Value>,
    /// The last JSON object that is no envelope and no line of the protocol.
    other: Option<Value>,
    /// Text that is no JSON object by itself; together it may be one.
    text: Vec<u8>,
    questions: usize,
    declined: bool,
}

/// Runs a call.
pub(super) async fn run(settings: &Settings, bound: &Bound, call: &Call, arguments: &Value) -> Done {
    let mut notices = Notices { call, folder: folder(settings, call), artifacts: Vec::new() };
    let mut sandbox = None;
    let result = tokio::select! {
        result = talk(settings, bound, arguments, &mut notices, &mut sandbox) => result,
        () = call.cancellation.cancelled() => Err(ToolError::cancelled(format!(
            "the caller asked to stop, and `{}` was ended",
            bound.spec.name
        ))),
    };
    let (with_data, taken): (Vec<_>, Vec<_>) = notices.artifacts.into_iter().partition(has_data);
    let mut artifacts = taken;
    artifacts.extend(with_data.iter().cloned().map(Artifact::without_data));
    let result = result.map(|mut output| {
        output.artifacts.extend(with_data);
        output
    });
    Done { result, artifacts, sandbox }
}

async fn talk(
    settings: &Settings,
    bound: &Bound,
    arguments: &Value,
    notices: &mut Notices<'_>,
    evidence: &mut Option<Value>,
) -> Result<Output, ToolError> {
    let call = notices.call;
    let wall = wall(settings, bound, call)?;
    let Told { arguments, input, is_open } = told(settings, bound, arguments)?;
    let workspace = notices.folder.clone().map_or(Workspace::Fresh, Workspace::Host);
    let mut sandbox = program::sandbox(settings, &bound.program.path, wall, workspace);
    sandbox = sandbox.level(level(settings, call)?);
    if let Some(input) = input {
        sandbox = sandbox.stdin(Stdin::Bytes(input));
    }
    let program = command_line(settings, &bound.program.path, arguments.iter().map(String::as_str));
    let most = [MAX_PRINTED, MAX_ERRORS].map(|most| settings.limits.output_total.min(most));
    let mut process = Process::start(sandbox, program, MAX_LINE, most, settings).await?;
    if !is_open {
        process.close_input();
    }
    let mut heap = Heap::default();
    let all = wall.saturating_add(LATE);
    let heard = tokio::time::timeout(all, listen(&mut process, settings, bound, notices, &mut heap)).await;
    match heard {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(with_stderr(error, &process.errors())),
        Err(_) => {
            return Err(ToolError::timeout(format!(
                "`{}` was not done within {}",
                bound.spec.name,
                format_duration(wall)
            )));
        }
    }
    let (errors, flooded) = (process.errors(), process.flooded());
    let outcome = process.end().await?;
    *evidence = serde_json::to_value(json!({
        "verdict": outcome.verdict,
        "usage": outcome.usage,
        "report": outcome.report,
    }))
    .ok();
    let result = conclude(bound, heap, &outcome, flooded);
    result
        .map_err(|error| explained(error, &errors))
        .map(|output| output.with_evidence(Evidence { sandbox: evidence.clone(), ..Evidence::default() }))
}

/// The error of a program for its author: an internal one with its message and causes, which are on standard error, and
/// any other with the end of that.
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

/// The id under which a program explains its internal error.
pub(super) fn internal_call(error: &ToolError) -> Option<&str> {
    if error.code() != Code::Internal {
        return None;
    }
    error.context().get("call")?.as_str()
}

/// The end of standard error helps whoever mends the program.
pub(super) fn with_stderr(error: ToolError, stderr: &[u8]) -> ToolError {
    let stderr = stderr.trim_ascii();
    if stderr.is_empty() || error.context().contains_key("stderr") {
        return error;
    }
    let end = stderr.get(stderr.len().saturating_sub(2_000)..).unwrap_or_default();
    error.with("stderr", excerpt(end, 2_000))
}

/// Takes lines until there are no more, and answers those that are questions.
async fn listen(
    process: &mut Process,
    settings: &Settings,
    bound: &Bound,
    notices: &mut Notices<'_>,
    heap: &mut Heap,
) -> Result<(), ToolError> {
    let mut lines = 0;
    loop {
        let next = if heap.envelope.is_some() {
            match tokio::time::timeout(GRACE, process.next()).await {
                Ok(next) => next,
                Err(_) => {
                    // It has said everything and does not end.
                    notices.log(LogLevel::Warn, "the program gave its result and did not end: it was ended");
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
            .suggest("Let it write large results to a file and print its name."));
        }
        let line = match next {
            None => return Ok(()),
            Some(Heard::Notice(notice)) => {
                applied(process, &notice).await?;
                notices.tell(notice).await;
                continue;
            }
            Some(Heard::Line(Line::TooLong { .. })) => {
                return Err(ToolError::limit(format!(
                    "`{}` printed a line of more than {} MiB or {MAX_VALUES} values",
                    bound.spec.name,
                    MAX_LINE >> 20
                ))
                .suggest("Let it write large results to a file and print its name."));
            }
            Some(Heard::Line(Line::Whole(line))) => line,
        };
        if line.trim_ascii().is_empty() {
            continue;
        }
        match ToolLine::read(&line) {
            Some(ToolLine::Notice(notice)) => {
                applied(process, &notice).await?;
                notices.tell(notice).await;
            }
            Some(ToolLine::Sample(_)) if !settings.sampling => return Err(no_sampling()),
            Some(ToolLine::Sample(request)) => sample(process, notices, heap, request).await?,
            Some(ToolLine::Session(SessionLine::SessionEnd { .. })) if bound.spec.mode == Mode::Session => {}
            Some(ToolLine::Session(line)) if bound.spec.mode == Mode::Session => {
                let value = serde_json::to_value(line).unwrap_or_default();
                ask(process, bound, notices, heap, &value).await?;
            }
            Some(ToolLine::Session(line)) => heap.other = serde_json::to_value(line).ok(),
            Some(ToolLine::Envelope(envelope)) => heap.envelope = Some(envelope),
            Some(ToolLine::Other(value))
                if bound.spec.mode == Mode::Session && heap.envelope.is_none() && !is_domain_end(&value) =>
            {
                ask(process, bound, notices, heap, &value).await?;
            }
            Some(ToolLine::Other(value)) => heap.other = Some(value),
            None => {
                let room = KEPT.saturating_sub(heap.text.len());
                heap.text.extend_from_slice(line.get(..line.len().min(room)).unwrap_or_default());
                heap.text.push(b'\n');
            }
        }
    }
}

/// Applies what the program changed before a file that it announces is read on the host.
async fn applied(process: &Process, notice: &Notice) -> Result<(), ToolError> {
    if matches!(notice, Notice::Artifact { .. }) { process.apply().await } else { Ok(()) }
}

/// Whether a line of a session only says how it ended.
fn is_domain_end(value: &Value) -> bool {
    value.get("type").is_none() && value.get("status").is_some()
}

fn count(heap: &mut Heap) -> Result<(), ToolError> {
    heap.questions += 1;
    if heap.questions > MAX_QUESTIONS {
        return Err(ToolError::limit(format!("a call may ask {MAX_QUESTIONS} times")));
    }
    Ok(())
}

/// The operator has said that programs are not to use the caller's model.
pub(super) fn no_sampling() -> ToolError {
    ToolError::precondition("programs may not ask the caller's model for completions here")
        .suggest("Name a model for them: `--model MODEL`.")
}

async fn sample(
    process: &mut Process,
    notices: &Notices<'_>,
    heap: &mut Heap,
    line: SampleLine,
) -> Result<(), ToolError> {
    count(heap)?;
    // The dialect has no word for a refusal: what the caller cannot do ends the call.
    let sample = notices.call.port.sample(notices.call.id, &line.request).await?;
    process.write(serde_json::to_vec(&SampleAnswer::new(line.id, sample))?)
}

/// A question of a session. The answer is an object; what is none is put into one.
async fn ask(
    process: &mut Process,
    bound: &Bound,
    notices: &Notices<'_>,
    heap: &mut Heap,
    line: &Value,
) -> Result<(), ToolError> {
    count(heap)?;
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
        Answer::Declined if heap.declined => {
            return Err(ToolError::cancelled("the caller ended the session, and the program went on asking"));
        }
        Answer::Declined => {
            heap.declined = true;
            json!({ "action": "quit" })
        }
    };
    process.write(serde_json::to_vec(&answer)?)
}

/// What is written for an answer: programs read objects. A text that is one stands for itself; any other stands under the
/// keys that programs look at.
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

/// Decides what came of a call, from what was printed and how the program ended.
fn conclude(
    bound: &Bound,
    mut heap: Heap,
    outcome: &Outcome,
    flooded: Option<u64>,
) -> Result<Output, ToolError> {
    let name = format!("`{}`", bound.spec.name);
    if let Some(printed) = flooded {
        return Err(ToolError::limit(format!("{name} printed more than {} MiB", printed >> 20))
            .suggest("Let it write large results to a file and print its name."));
    }
    // A program that was stopped after its result was stopped by this crate.
    let is_over = heap.envelope.is_some() && outcome.verdict == Verdict::Cancelled;
    let bad_end = if is_over { None } else { of_verdict(&outcome.verdict, &name) };
    if heap.envelope.is_none() && heap.other.is_none() && !heap.text.is_empty() {
        // Not every program writes its envelope on one line.
        heap.envelope = serde_json::from_slice::<Value>(&heap.text).ok().filter(Value::is_object);
    }
    let domain = heap.envelope.as_ref().is_some_and(|envelope| !is_certain(envelope));
    if domain {
        heap.other = heap.envelope.take();
    }
    let Some(envelope) = heap.envelope else {
        if let Some(error) = bad_end {
            return Err(error);
        }
        let failed = |message: String| Err(ToolError::dependency(message).with("exit_code", 0));
        if bound.spec.mode == Mode::Streaming && !domain {
            return failed(format!("{name} ended before its result"));
        }
        // A result with a `status` of its own is printed as it is.
        return match heap.other {
            Some(mut value) if value.get("status").is_some() => {
                if value.get("type").and_then(Value::as_str) == Some("result")
                    && let Some(fields) = value.as_object_mut()
                {
                    fields.remove("type");
                }
                Ok(Output::json(value))
            }
            Some(value) => failed(format!(
                "{name} printed no envelope: expected an object with `status`, found {}",
                excerpt(value.to_string().as_bytes(), 200)
            )),
            None if heap.text.is_empty() => failed(format!(
                "{name} printed nothing: expected an envelope such as {{\"status\": \"success\", \"result\": …}}"
            )),
            None => failed(format!(
                "{name} printed no envelope: {}; found {}",
                serde_json::from_slice::<Value>(heap.text.trim_ascii())
                    .map_or_else(|error| error.to_string(), |_| "it is no object".to_owned()),
                excerpt(heap.text.trim_ascii(), 200)
            )),
        };
    };
    // What is no object stands under `result` once more; a tool whose schema says that it gives objects gives objects.
    let gives_objects = bound
        .spec
        .output_schema
        .as_ref()
        .is_some_and(|schema| schema.as_value().get("type").and_then(Value::as_str) == Some("object"));
    let output = read_envelope(&envelope, !gives_objects)?;
    match bad_end {
        // Our own programs tell a partial failure by their status too.
        Some(_) if output.partial.is_some() && matches!(outcome.verdict, Verdict::Exit { .. }) => Ok(output),
        Some(error) => {
            let message = format!("{} after it had reported success", error.message());
            let failed = ToolError::new(error.code(), message).suggest("Its result is not to be trusted.");
            Err(error.context().iter().fold(failed, |failed, (fact, value)| failed.with(fact, value.clone())))
        }
        None => Ok(output),
    }
}

/// Whether an envelope is one for certain: `success` with other keys than the protocol's and without a result is a
/// result of the tool's own that has a `status`.
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
