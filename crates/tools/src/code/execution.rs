//! `code_execution`: the tool that providers host, served by this host's own sandbox.

use std::time::Duration;

use serde_json::json;
use toolpost::{Artifact, Ctx, Evidence, ToolError, data, tool};
use toolpost_sandbox::{Interruption, Language, Limits, Outcome, Program, Verdict};

use super::run::{artifacts, settings_of, watched};
use super::session::{CodeSession, Held};
use super::{CodeSettings, describe, failure};
use crate::WithText;
use crate::files::Folder;

/// The environment of the hosted tool: what one conversation's code may use.
const MEMORY: u64 = 1 << 30;
const WORKSPACE: u64 = 5 << 30;
const PROCESSORS: f32 = 1.0;
const TIME: Duration = Duration::from_hours(1);

/// The session that the calls of one conversation share.
const SESSION: &str = "code_execution";

/// The language of the hosted tool.
const PYTHON: &str = "python";

/// What code came to, in the blocks of the hosted tool.
#[data]
#[derive(Clone, Debug, PartialEq)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CodeExecutionResult {
    /// The code has run.
    CodeExecutionResult {
        /// What it wrote to standard output, and the value of its last expression; when it was long, the beginning and
        /// the end.
        stdout: String,
        /// What it wrote to standard error, and what else is to be said.
        stderr: String,
        /// 0 if it ended well.
        return_code: i32,
        /// The files that it made or changed.
        content: Vec<CodeExecutionFile>,
    },
    /// The code has not run to its end.
    CodeExecutionToolResultError {
        /// Why not.
        error_code: CodeExecutionError,
    },
}

/// A file that code made or changed.
#[data]
#[derive(Clone, Debug, PartialEq)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CodeExecutionFile {
    /// A file of the workspace.
    CodeExecutionOutput {
        /// Its path in the workspace, by which later code finds it too.
        file_id: String,
    },
}

/// Why code has not run to its end, in the hosted tool's words.
#[data]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum CodeExecutionError {
    /// There was no code.
    InvalidToolInput,
    /// It took longer than it may.
    ExecutionTimeExceeded,
}

/// Run Python code in a sandbox without network.
///
/// What the code prints comes back, and the value of its last expression. Variables, imports and files stay for the next
/// call of this conversation. Files of the working folder are there by name, and files that the code writes into the
/// current folder are handed to the user. There is 1 GiB of memory, 5 GiB of disk, one processor and an hour of time.
#[tool(
    summary = "Code execution",
    tags("code", "python", "sandbox", "execute", "analysis"),
    timeout_s = 3660,
    examples(r#"{"code": "print(sum(range(10)))"}"#),
    policy(category = "code_execution", group = "code", destructive)
)]
pub fn code_execution(
    /// The Python code.
    #[arg(format = "code")]
    code: String,
    ctx: &Ctx,
) -> Result<WithText<CodeExecutionResult>, ToolError> {
    if code.trim().is_empty() {
        return block(
            CodeExecutionResult::CodeExecutionToolResultError {
                error_code: CodeExecutionError::InvalidToolInput,
            },
            None,
        );
    }
    let settings = environment(&settings_of(ctx));
    let language: Language = PYTHON.parse().map_err(failure::of_sandbox)?;
    if ctx.scope().is_none() {
        // A call on its own has no conversation to keep anything for.
        let mut sandbox = settings.sandbox(ctx, None)?;
        if let Some(folder) = Folder::find(ctx)? {
            sandbox = settings.in_directory(sandbox, folder.path());
        }
        let program = Program::code(language, code);
        let outcome = watched(ctx, |cancel, on_event| sandbox.run(&program, cancel, on_event))?;
        return told(&outcome, artifacts(&outcome)?, &[]);
    }
    let asked = CodeSession { id: SESSION.to_owned(), fork_of: None };
    let held = Held::find(&asked, language, &settings, None, ctx)?;
    let limits = Held::limits(&settings, None, ctx)?;
    let ended = watched(ctx, |cancel, on_event| held.session.run(&code, &limits, cancel, on_event));
    let is_over = held.forget_if_ended();
    let mut notes = held.notes;
    if is_over {
        notes.push("The session has ended: variables and files of earlier calls are gone.".to_owned());
    }
    let ended = ended?;
    let made = artifacts(&ended)?;
    notes.extend(Held::hand_back(&made, ctx)?);
    told(&ended, made, &notes)
}

/// What the operator allows, with the hosted tool's environment where the operator has set no limits, and never a way
/// out.
fn environment(settings: &CodeSettings) -> CodeSettings {
    let mut settings = settings.clone();
    let hosted = Limits::default()
        .with_memory(MEMORY)
        .with_workspace_bytes(WORKSPACE)
        .with_cpu_quota(PROCESSORS)
        .with_wall(TIME);
    settings.limits =
        if settings.limits == Limits::default() { hosted } else { settings.limits.tightened(&hosted) };
    settings.longest_timeout = TIME;
    settings.egress = None;
    settings
}

/// A run in the hosted tool's words.
fn told(
    outcome: &Outcome,
    artifacts: Vec<Artifact>,
    notes: &[String],
) -> Result<WithText<CodeExecutionResult>, ToolError> {
    let is_late = match &outcome.verdict {
        Verdict::Timeout { .. } | Verdict::Cpu { .. } | Verdict::Idle { .. } => true,
        Verdict::Interrupted { by } => matches!(by, Interruption::Wall | Interruption::Cpu),
        _ => false,
    };
    let result = if is_late {
        CodeExecutionResult::CodeExecutionToolResultError {
            error_code: CodeExecutionError::ExecutionTimeExceeded,
        }
    } else {
        let mut stdout = outcome.stdout.text();
        if let Some(value) = outcome.value.as_ref().filter(|value| !value.is_null()) {
            add_line(&mut stdout, &value.to_string());
        }
        let mut stderr = outcome.stderr.text();
        let ending = match &outcome.verdict {
            // The status says it already.
            Verdict::Exit { .. } => None,
            verdict => describe::verdict(verdict),
        };
        let applied: Vec<String> = outcome.applied.iter().flat_map(describe::applied).collect();
        for line in ending.iter().chain(notes).chain(&applied) {
            add_line(&mut stderr, line);
        }
        let return_code = match &outcome.verdict {
            Verdict::Ok => 0,
            Verdict::Exit { code } => *code,
            Verdict::Signal { signal } => 128 + signal,
            _ => outcome.exit_code.filter(|code| *code != 0).unwrap_or(1),
        };
        CodeExecutionResult::CodeExecutionResult {
            stdout,
            stderr,
            return_code,
            content: outcome
                .artifacts
                .iter()
                .map(|file| CodeExecutionFile::CodeExecutionOutput { file_id: file.path.clone() })
                .collect(),
        }
    };
    let sandbox = json!({ "verdict": outcome.verdict, "usage": outcome.usage, "report": outcome.report });
    let evidence = Evidence { sandbox: Some(sandbox), ..Evidence::default() };
    Ok(WithText { artifacts, ..block(result, Some(evidence))? })
}

fn add_line(text: &mut String, line: &str) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(line);
    text.push('\n');
}

/// A block, which a model reads as it is.
fn block(
    result: CodeExecutionResult,
    evidence: Option<Evidence>,
) -> Result<WithText<CodeExecutionResult>, ToolError> {
    let text = serde_json::to_string(&result)?;
    Ok(WithText { evidence, ..WithText::new(result, text) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_the_hosted_one_and_never_more_than_the_operator_allows() {
        let open = environment(&CodeSettings::default());
        assert_eq!(
            (open.limits.memory, open.limits.workspace_bytes, open.limits.cpu_quota, open.limits.wall),
            (1 << 30, 5 << 30, Some(1.0), Duration::from_hours(1))
        );
        let own = CodeSettings {
            limits: Limits::default().with_memory(64 << 20).with_wall(Duration::from_secs(9)),
            egress: Some(toolpost_sandbox::Egress::new()),
            ..CodeSettings::default()
        };
        let tight = environment(&own);
        assert_eq!((tight.limits.memory, tight.limits.wall), (64 << 20, Duration::from_secs(9)));
        assert!(tight.egress.is_none());
    }

    #[test]
    fn blocks_are_those_of_the_hosted_tool() {
        let result = CodeExecutionResult::CodeExecutionResult {
            stdout: "6\n".into(),
            stderr: String::new(),
            return_code: 0,
            content: vec![CodeExecutionFile::CodeExecutionOutput { file_id: "plot.png".into() }],
        };
        assert_eq!(
            serde_json::to_value(&result).unwrap(),
            json!({"type": "code_execution_result", "stdout": "6\n", "stderr": "", "return_code": 0,
                "content": [{"type": "code_execution_output", "file_id": "plot.png"}]})
        );
        let late = CodeExecutionResult::CodeExecutionToolResultError {
            error_code: CodeExecutionError::ExecutionTimeExceeded,
        };
        assert_eq!(
            serde_json::to_value(&late).unwrap(),
            json!({"type": "code_execution_tool_result_error", "error_code": "execution_time_exceeded"})
        );
    }
}
