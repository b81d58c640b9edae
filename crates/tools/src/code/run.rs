//! `run_code` and `run_command`.

use std::pin::pin;
use std::task::{Context, Poll};

use serde_json::{Value, json};
use toolpost::{Artifact, Ctx, Evidence, ToolError, data, tool};
use toolpost_sandbox::{Cancel, Error, Event, Language, Outcome, Pool, Program, Stdin, Unmet};

use super::output_log::OutputLog;
use super::session::{CodeSession, Held};
use super::{CodeSettings, describe, failure};
use crate::WithText;
use crate::files::Folder;

/// A file that code created or changed.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct CodeArtifact {
    /// Its path relative to the working folder.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Such as `image/png`.
    pub media_type: String,
    /// The SHA-256 of its content, in hexadecimal digits.
    pub sha256: String,
}

/// What a run came to.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct CodeResult {
    /// The exit status; `null` when the program did not end by itself.
    pub exit_code: Option<i32>,
    /// The same as `exit_code`.
    pub return_code: Option<i32>,
    /// Standard output; when it was long, its beginning and its end.
    pub stdout: String,
    /// Standard error; when it was long, its beginning and its end.
    pub stderr: String,
    /// The value of the last expression of the code, or of the last line `::result JSON` that it printed.
    pub value: Option<Value>,
    /// Files that were created or changed.
    pub artifacts: Vec<CodeArtifact>,
    /// How the program ended: `kind` is ok, exit, signal, timeout, cpu, memory, processes, disk, output, denied or
    /// cancelled.
    pub verdict: Value,
    /// The level of the sandbox that was given.
    pub level: String,
}

/// Run code in the sandbox.
///
/// The code runs in the working folder: its files are there by name, and files that it writes stay. There is no
/// network but to hosts that the operator allows. The value of a last expression comes back as `value`, in any language
/// also that of a printed line `::result JSON`. Code that fails is not an error of this tool: look at `exit_code`,
/// `stderr` and `verdict`.
///
/// With `session` the code runs in an interpreter that stays: variables, imports and files are there for the next call.
/// A session has a folder of its own, a copy of the working folder when it begins; what it makes comes back with each
/// call. A session can be forked, to try several ways from one point.
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
    #[arg(example = "python")]
    language: String,
    /// The source code.
    #[arg(format = "code")]
    code: String,
    /// Stop the code after this many seconds. The default is the operator's, usually 30.
    #[arg(min = 0.001)]
    timeout: Option<f64>,
    /// What the code can read from standard input.
    stdin: Option<String>,
    /// Run it in an interpreter that stays. Python has such.
    session: Option<CodeSession>,
    ctx: &Ctx,
) -> Result<WithText<CodeResult>, ToolError> {
    let language: Language = language.parse().map_err(failure::of_sandbox)?;
    match session {
        None => run(&Program::code(language, code), timeout, stdin, ctx),
        Some(_) if stdin.is_some() => {
            Err(ToolError::invalid_input("code in a session has no standard input")
                .with("pointer", "/stdin")
                .suggest("Put the data into the code, or leave `session` out."))
        }
        Some(session) => run_cell(&session, language, &code, timeout, ctx),
    }
}

/// Run a program with its arguments in the sandbox, without a shell.
///
/// It runs in the working folder, as `run_code` does, and without network. A program that fails is not an error of
/// this tool: look at `exit_code`, `stderr` and `verdict`.
#[tool(
    summary = "Run command",
    tags("command", "program", "process", "sandbox", "execute"),
    timeout_s = 360,
    examples(r#"{"argv": ["grep", "-c", "north", "sales.csv"]}"#),
    policy(category = "code_execution", group = "code", destructive)
)]
pub fn run_command(
    /// The program and its arguments, for example ["ls", "-l"]. Nothing in them is expanded.
    argv: Vec<String>,
    /// Stop the program after this many seconds. The default is the operator's, usually 30.
    #[arg(min = 0.001)]
    timeout: Option<f64>,
    /// What the program can read from standard input.
    stdin: Option<String>,
    ctx: &Ctx,
) -> Result<WithText<CodeResult>, ToolError> {
    if argv.first().is_none_or(String::is_empty) {
        return Err(ToolError::invalid_input("`argv` has no program: expected its name, then its arguments")
            .with("pointer", "/argv")
            .suggest("Write for example [\"ls\", \"-l\"]."));
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
    if let Some(folder) = Folder::find(ctx)? {
        sandbox = settings.in_directory(sandbox, folder.path());
    }
    let pool = settings.pool.as_ref().filter(|_| settings.backend.is_none() && settings.egress.is_none());
    let outcome = watched(ctx, |cancel, on_event| match pool {
        Some(pool) => pool.run(|| settings.ahead(), &sandbox, program, cancel, on_event),
        None => sandbox.run(program, cancel, on_event),
    })?;
    answer(program, &outcome, artifacts(&outcome)?, Vec::new())
}

/// Runs a cell in a session of the call's scope.
fn run_cell(
    asked: &CodeSession,
    language: Language,
    code: &str,
    timeout: Option<f64>,
    ctx: &Ctx,
) -> Result<WithText<CodeResult>, ToolError> {
    let settings = settings_of(ctx);
    let held = Held::find(asked, language, &settings, timeout, ctx)?;
    let limits = Held::limits(&settings, timeout, ctx)?;
    let ended = watched(ctx, |cancel, on_event| held.session.run(code, &limits, cancel, on_event));
    held.forget_if_ended();
    let ended = ended?;
    let made = artifacts(&ended)?;
    let notes = held.notes.into_iter().chain(Held::hand_back(&made, ctx)?).collect();
    answer(&Program::code(language, code), &ended, made, notes)
}

pub(super) fn settings_of(ctx: &Ctx) -> CodeSettings {
    ctx.inject::<CodeSettings>().map(|settings| (*settings).clone()).unwrap_or_default()
}

/// Runs something that ends early when the caller asks to stop, and tells its output while it comes.
pub(super) fn watched(
    ctx: &Ctx,
    run: impl FnOnce(&Cancel, &mut dyn FnMut(Event<'_>)) -> Result<Outcome, Error>,
) -> Result<Outcome, ToolError> {
    let cancel = Cancel::new();
    let asked = ctx.clone();
    let waker = cancel.waker(move || asked.is_cancelled());
    let mut cancelled = pin!(ctx.cancelled());
    // The future stays registered until the run is over, and its waker needs no thread of its own.
    if cancelled.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Ready(()) {
        return Err(ToolError::cancelled("the caller asked to stop before the program started"));
    }
    let mut log = OutputLog::new(ctx);
    let outcome = run(&cancel, &mut |event| log.take(event)).map_err(failure::of_sandbox)?;
    log.finish();
    Ok(outcome)
}

/// The files that a run made or changed.
pub(super) fn artifacts(outcome: &Outcome) -> Result<Vec<Artifact>, ToolError> {
    let mut artifacts = Vec::with_capacity(outcome.artifacts.len());
    for file in &outcome.artifacts {
        // Taken now: a fresh workspace goes away, and in another the next run may put something else there.
        let bytes = file.read().map_err(failure::of_sandbox)?;
        let mut artifact = Artifact::from_bytes(file.path.clone(), file.media_type, bytes);
        artifact.sha256 = Some(file.sha256.clone());
        artifacts.push(artifact);
    }
    Ok(artifacts)
}

fn answer(
    program: &Program,
    outcome: &Outcome,
    artifacts: Vec<Artifact>,
    remarks: Vec<String>,
) -> Result<WithText<CodeResult>, ToolError> {
    let result = CodeResult {
        exit_code: outcome.exit_code,
        return_code: outcome.exit_code,
        stdout: outcome.stdout.text(),
        stderr: outcome.stderr.text(),
        value: outcome.value.clone(),
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
    let reached = outcome.report.reached.iter().filter_map(|reached| describe::reached(*reached));
    // How fast it was is nothing to a model; the evidence has it.
    let notes = outcome.report.notes.iter().filter(|note| !note.starts_with(Pool::COLD)).cloned();
    let applied = outcome.applied.iter().flat_map(describe::applied);
    let unmet = Unmet::find(program, &result.stdout, &result.stderr, &outcome.report);
    let remarks = applied.chain(remarks).chain(unmet.iter().filter_map(describe::unmet));
    let notes: Vec<String> = reached.map(ToOwned::to_owned).chain(notes).chain(remarks).collect();
    let text = describe::text(&result, describe::verdict(&outcome.verdict).as_deref(), &notes);
    let sandbox = json!({ "verdict": outcome.verdict, "usage": outcome.usage, "report": outcome.report });
    Ok(WithText {
        value: result,
        text,
        artifacts,
        evidence: Some(Evidence { sandbox: Some(sandbox), ..Evidence::default() }),
    })
}
