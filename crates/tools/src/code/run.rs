//! `run_code` and `run_command`.

use std::pin::pin;
use std::task::{Context, Poll};

use serde_json::Value;
use toolpost::{Artifact, Ctx, Evidence, LogLevel, Masks, OutputLog, ToolError, WholeText, data, tool};
use toolpost_runtimes::Unmet;
use toolpost_sandbox::{Cancel, Error, Language, Outcome, Program, RunEvidence, SandboxEvent, Stdin};

use super::session::{CodeSession, SessionHandle};
use super::{CodeSettings, describe, failure, truncation};
use crate::WithText;
use crate::files::Directory;

/// A file that code created or changed.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct CodeArtifact {
    /// Path relative to the working directory.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Media type, such as `image/png`.
    pub media_type: String,
    /// SHA-256 in hexadecimal digits.
    pub sha256: String,
}

/// The result of a run.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct CodeResult {
    /// Exit status; `null` if the program was stopped.
    pub exit_code: Option<i32>,
    /// An alias of `exit_code`.
    pub return_code: Option<i32>,
    /// Standard output; long output keeps its start and end.
    pub stdout: String,
    /// Standard error; long output keeps its start and end.
    pub stderr: String,
    /// Value of the last expression, or of the last printed line `::result JSON`: exact JSON, or `type` and `text`.
    pub value: Option<Value>,
    /// Files that the code created or changed.
    pub artifacts: Vec<CodeArtifact>,
    /// The verdict: `kind` is ok, exit, signal, timeout, cpu, memory, processes, disk, output, denied or cancelled.
    pub verdict: Value,
    /// The effective sandbox level.
    pub level: String,
}

/// Run code in the sandbox.
///
/// The code runs in the working directory: its files are available by name, and files that it writes persist. Only hosts
/// that the operator allows are reachable. `value` is the value of the last expression, or in any language of a printed
/// line `::result JSON`. Failing code is not an error of this tool: check `exit_code`, `stderr` and `verdict`.
///
/// With `session` the code runs in a persistent interpreter: variables, imports and files stay for the next call. A
/// session starts with a copy of the working directory, and each call returns the files that it creates. A session can
/// be forked, to try several ways from one point.
#[tool(
    summary = "Run code",
    tags("code", "python", "javascript", "bash", "sandbox", "execute"),
    timeout_s = 360,
    examples(r#"{"language": "python", "code": "sum(range(10))"}"#),
    policy(category = "code_execution", group = "code", destructive)
)]
pub fn run_code(
    /// The language: "python", "javascript", "typescript", "bash", "sh", "ruby", "perl", "go", "rust", "java", "c", "c++",
    /// "r", "lua", "php" or "sqlite".
    #[arg(example = "python", format = "program")]
    language: String,
    /// The source code.
    #[arg(format = "code")]
    code: String,
    /// Timeout in seconds. The operator sets the default, usually 30.
    #[arg(min = 0.001)]
    timeout: Option<f64>,
    /// Text for standard input.
    stdin: Option<String>,
    /// Run it in a persistent interpreter. Only for Python.
    session: Option<CodeSession>,
    ctx: &Ctx,
) -> Result<WithText<CodeResult>, ToolError> {
    let language: Language = language.parse().map_err(failure::of_sandbox)?;
    match session {
        None => run(&Program::code(language, code), timeout, stdin, ctx),
        Some(_) if stdin.is_some() => {
            Err(ToolError::invalid_input("code in a session has no standard input")
                .with("pointer", "/stdin")
                .suggest("Put the data into the code, or omit `session`."))
        }
        Some(session) => run_cell(&session, language, &code, timeout, ctx),
    }
}

/// Run a program with its arguments in the sandbox, without a shell.
///
/// It runs in the working directory, like `run_code`, and without network. A failing program is not an error of this
/// tool: check `exit_code`, `stderr` and `verdict`.
#[tool(
    summary = "Run command",
    tags("command", "program", "process", "sandbox", "execute"),
    timeout_s = 360,
    examples(r#"{"argv": ["grep", "-c", "north", "sales.csv"]}"#),
    policy(category = "code_execution", group = "code", destructive)
)]
pub fn run_command(
    /// The program and its arguments, for example ["ls", "-l"]. Nothing is expanded.
    #[arg(format = "argv")]
    argv: Vec<String>,
    /// Timeout in seconds. The operator sets the default, usually 30.
    #[arg(min = 0.001)]
    timeout: Option<f64>,
    /// Text for standard input.
    #[arg(format = "stdin")]
    stdin: Option<String>,
    ctx: &Ctx,
) -> Result<WithText<CodeResult>, ToolError> {
    if argv.first().is_none_or(String::is_empty) {
        return Err(ToolError::invalid_input(
            "`argv` names no program; expected a program and its arguments",
        )
        .with("pointer", "/argv")
        .suggest("Write, for example, [\"ls\", \"-l\"]."));
    }
    run(&Program::argv(argv), timeout, stdin, ctx)
}

fn run(
    program: &Program,
    timeout: Option<f64>,
    stdin: Option<String>,
    ctx: &Ctx,
) -> Result<WithText<CodeResult>, ToolError> {
    let settings = settings_of(ctx);
    let mut sandbox = settings.sandbox(ctx, timeout)?;
    if let Some(text) = stdin {
        sandbox = sandbox.stdin(Stdin::Bytes(text.into_bytes()));
    }
    if let Some(directory) = Directory::find(ctx)? {
        sandbox = settings.in_directory(sandbox, directory.path());
    }
    let pool = settings.pool.as_ref().filter(|_| settings.backend.is_none() && settings.egress.is_none());
    let watched = watched(ctx, &settings.masks, |cancel, on_event| match pool {
        Some(pool) => pool.run(|| settings.plain_sandbox(), &sandbox, program, cancel, on_event),
        None => sandbox.run(program, cancel, on_event),
    })?;
    let artifacts = artifacts(&watched.outcome);
    answer(program, watched, artifacts, Vec::new(), &settings.masks)
}

/// Runs code in a session of the call's scope.
fn run_cell(
    request: &CodeSession,
    language: Language,
    code: &str,
    timeout: Option<f64>,
    ctx: &Ctx,
) -> Result<WithText<CodeResult>, ToolError> {
    let settings = settings_of(ctx);
    let handle = SessionHandle::find(request, language, &settings, timeout, ctx)?;
    let limits = SessionHandle::limits(&settings, timeout, ctx)?;
    let ended =
        watched(ctx, &settings.masks, |cancel, on_event| handle.session.run(code, &limits, cancel, on_event));
    handle.remove_if_ended();
    let ended = ended?;
    let artifacts = artifacts(&ended.outcome);
    let notes = handle.notes.into_iter().chain(SessionHandle::write_back(&artifacts.read, ctx)?).collect();
    answer(&Program::code(language, code), ended, artifacts, notes, &settings.masks)
}

pub(super) fn settings_of(ctx: &Ctx) -> CodeSettings {
    ctx.inject::<CodeSettings>().map(|settings| (*settings).clone()).unwrap_or_default()
}

/// A run that ended.
pub(super) struct Watched {
    pub(super) outcome: Outcome,
    /// The whole output for a model, if the outcome has a part of it.
    pub(super) whole: Option<WholeText>,
}

/// Runs something that stops when the caller cancels, and logs its output live.
pub(super) fn watched(
    ctx: &Ctx,
    masks: &Masks,
    run: impl FnOnce(&Cancel, &mut dyn FnMut(SandboxEvent<'_>)) -> Result<Outcome, Error>,
) -> Result<Watched, ToolError> {
    let cancel = Cancel::new();
    let watched = ctx.clone();
    let waker = cancel.waker(move || watched.is_cancelled());
    let mut cancelled = pin!(ctx.cancelled());
    // The future stays registered until the run ends, and its waker needs no thread.
    if cancelled.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Ready(()) {
        return Err(ToolError::cancelled("the caller cancelled before the program started"));
    }
    let mut log = OutputLog::new(ctx, masks.as_slice());
    let mut write = |event: SandboxEvent<'_>| match event {
        SandboxEvent::Stdout(bytes) => log.write(LogLevel::Info, bytes),
        SandboxEvent::Stderr(bytes) => log.write(LogLevel::Warn, bytes),
        _ => {}
    };
    let outcome = run(&cancel, &mut write).map_err(failure::of_sandbox)?;
    let whole = log.finish(outcome.truncated_size());
    Ok(Watched { outcome, whole })
}

/// The files that a run created or changed.
#[derive(Default)]
pub(super) struct Artifacts {
    pub(super) read: Vec<Artifact>,
    /// Notes on files that others changed or removed after the run.
    pub(super) notes: Vec<String>,
}

/// Reads the files that a run created or changed. The run has had its effects, so that no missing file fails it.
pub(super) fn artifacts(outcome: &Outcome) -> Artifacts {
    let mut artifacts = Artifacts::default();
    for file in &outcome.artifacts {
        // Read now: a fresh workspace disappears, and in another one the next run may change the file.
        match file.read() {
            Ok(bytes) => {
                let mut artifact = Artifact::from_bytes(file.path.clone(), file.media_type, bytes);
                artifact.sha256 = Some(file.sha256.clone());
                artifacts.read.push(artifact);
            }
            Err(error) => artifacts.notes.push(format!("`{}` is not attached: {error}.", file.path)),
        }
    }
    artifacts
}

fn answer(
    program: &Program,
    Watched { outcome, whole }: Watched,
    artifacts: Artifacts,
    remarks: Vec<String>,
    masks: &Masks,
) -> Result<WithText<CodeResult>, ToolError> {
    let result = CodeResult {
        exit_code: outcome.exit_code,
        return_code: outcome.exit_code,
        stdout: masks.text(&outcome.stdout.text()),
        stderr: masks.text(&outcome.stderr.text()),
        value: outcome.value.clone().map(|value| masks.value(value)),
        artifacts: outcome
            .artifacts
            .iter()
            .map(|file| CodeArtifact {
                name: file.path.clone(),
                size: file.size,
                media_type: file.media_type.to_owned(),
                sha256: file.sha256.clone(),
            })
            .collect(),
        verdict: serde_json::to_value(&outcome.verdict)?,
        level: outcome.report.effective.name().to_owned(),
    };
    if let Some(error) =
        outcome.applied.as_ref().and_then(|applied| failure::of_applied(applied, "the program"))
    {
        return Err(error.with("result", serde_json::to_value(&result)?));
    }
    let reached = outcome.report.reached.iter().filter_map(|reached| describe::reached(*reached));
    // Timing is not for the model; the evidence has it.
    let notes =
        outcome.report.notes.iter().filter(|note| outcome.report.cold_start.as_ref() != Some(*note)).cloned();
    let applied = outcome.applied.iter().flat_map(describe::applied);
    let unmet = Unmet::find(program, &result.stdout, &result.stderr, &outcome.report);
    let hidden = describe::not_shown(&outcome.report).filter(|_| !outcome.verdict.is_ok());
    let remarks = applied
        .chain(artifacts.notes)
        .chain(remarks)
        .chain(unmet.iter().filter_map(describe::unmet))
        .chain(hidden);
    let notes: Vec<String> = reached.map(ToOwned::to_owned).chain(notes).chain(remarks).collect();
    let text = describe::text(&result, describe::verdict(&outcome.verdict).as_deref(), &notes);
    let sandbox = RunEvidence::from(&outcome).to_value();
    let (text, sandbox) = (masks.text(&text), masks.value(sandbox));
    Ok(WithText {
        value: result,
        text,
        artifacts: artifacts.read,
        evidence: Some(Evidence { sandbox: Some(sandbox), ..Evidence::default() }),
        truncated: truncation::parts(&outcome),
        whole,
    })
}
