//! `code_execution`: a local replacement of the providers' hosted tool.

use std::time::Duration;

use toolpost::{Ctx, Evidence, ToolError, data, tool};
use toolpost_runtimes::Unmet;
use toolpost_sandbox::{Interruption, Language, Limits, Program, RunEvidence, Verdict};

use super::run::{Artifacts, Watched, artifacts, settings_of, watched};
use super::session::{CodeSession, SessionHandle};
use super::{CodeSettings, describe, failure, truncation};
use crate::WithText;
use crate::files::Directory;

/// Limits of the hosted tool.
const MEMORY: u64 = 1 << 30;
const WORKSPACE: u64 = 5 << 30;
const PROCESSORS: f32 = 1.0;
const TIME: Duration = Duration::from_hours(1);

/// Name of the session that a conversation's calls share.
const SESSION: &str = "code_execution";

/// The language of the hosted tool.
const PYTHON: &str = "python";

/// The result of code, in the blocks of the hosted tool.
#[data]
#[derive(Clone, Debug, PartialEq)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CodeExecutionResult {
    /// The code ran.
    CodeExecutionResult {
        /// Standard output and the value of the last expression; long output keeps its start and end.
        stdout: String,
        /// Standard error and notes.
        stderr: String,
        /// 0 for success.
        return_code: i32,
        /// Files that the code created or changed.
        content: Vec<CodeExecutionFile>,
    },
    /// The code did not finish.
    CodeExecutionToolResultError {
        /// The reason.
        error_code: CodeExecutionError,
    },
}

/// A file that code created or changed.
#[data]
#[derive(Clone, Debug, PartialEq)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CodeExecutionFile {
    /// A file of the workspace.
    CodeExecutionOutput {
        /// Path in the workspace, which later code can use.
        file_id: String,
    },
}

/// The reason why code did not finish, in the terms of the hosted tool.
#[data]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum CodeExecutionError {
    /// The code is empty.
    InvalidToolInput,
    /// The code timed out.
    ExecutionTimeExceeded,
}

/// Run Python code in a sandbox without network.
///
/// Returns the printed output and the value of the last expression. Variables, imports and files persist between the
/// calls of a conversation. Files of the working directory are available by name, and files that the code writes to the
/// current directory are returned to the user. Limits: 1 GiB of memory, 5 GiB of disk, one processor, one hour.
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
        // A call without a conversation needs no session.
        let mut sandbox = settings.sandbox(ctx, None)?;
        if let Some(directory) = Directory::find(ctx)? {
            sandbox = settings.in_directory(sandbox, directory.path());
        }
        let program = Program::code(language, code);
        let ended =
            watched(ctx, &settings.masks, |cancel, on_event| sandbox.run(&program, cancel, on_event))?;
        let artifacts = artifacts(&ended.outcome);
        return to_block(ended, artifacts, &[], &program);
    }
    let request = CodeSession { id: SESSION.to_owned(), fork_of: None };
    let handle = SessionHandle::find(&request, language, &settings, None, ctx)?;
    let limits = SessionHandle::limits(&settings, None, ctx)?;
    let ended = watched(ctx, &settings.masks, |cancel, on_event| {
        handle.session.run(&code, &limits, cancel, on_event)
    });
    let is_over = handle.remove_if_ended();
    let mut notes = handle.notes;
    if is_over {
        notes.push("The session ended: variables and files of earlier calls are lost.".to_owned());
    }
    let ended = ended?;
    let artifacts = artifacts(&ended.outcome);
    notes.extend(SessionHandle::write_back(&artifacts.read, ctx)?);
    to_block(ended, artifacts, &notes, &Program::code(language, code))
}

/// The operator's settings, with the hosted tool's limits by default and always without network.
fn environment(settings: &CodeSettings) -> CodeSettings {
    let mut settings = settings.clone();
    let hosted = Limits::default()
        .with_memory(MEMORY)
        .with_workspace_bytes(WORKSPACE)
        .with_cpu_quota(PROCESSORS)
        .with_wall(TIME);
    settings.limits =
        if settings.limits == Limits::default() { hosted } else { settings.limits.tightened(&hosted) };
    settings.max_timeout = TIME;
    settings.egress = None;
    settings
}

/// Converts a run into a block.
fn to_block(
    Watched { outcome, whole }: Watched,
    artifacts: Artifacts,
    notes: &[String],
    program: &Program,
) -> Result<WithText<CodeExecutionResult>, ToolError> {
    if let Some(error) = outcome.applied.as_ref().and_then(|applied| failure::of_applied(applied, "the code"))
    {
        return Err(error);
    }
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
            // `return_code` has the status.
            Verdict::Exit { .. } => None,
            verdict => describe::verdict(verdict),
        };
        let unmet = Unmet::find(program, &stdout, &stderr, &outcome.report);
        let unmet: Vec<String> = unmet.iter().filter_map(describe::unmet).collect();
        let applied: Vec<String> = outcome.applied.iter().flat_map(describe::applied).collect();
        for line in ending.iter().chain(notes).chain(&artifacts.notes).chain(&applied).chain(&unmet) {
            add_line(&mut stderr, line);
        }
        let return_code = match outcome.verdict {
            Verdict::Ok => 0,
            Verdict::Exit { code } => code,
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
    let sandbox = RunEvidence::from(&outcome).to_value();
    let evidence = Evidence { sandbox: Some(sandbox), ..Evidence::default() };
    // The value is the end of the standard output.
    let truncated = truncation::parts(&outcome).into_iter().map(|mut part| {
        if part.pointer == "/value" {
            "/stdout".clone_into(&mut part.pointer);
        }
        part
    });
    let truncated = truncated.collect();
    Ok(WithText { artifacts: artifacts.read, truncated, whole, ..block(result, Some(evidence))? })
}

fn add_line(text: &mut String, line: &str) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(line);
    text.push('\n');
}

/// A block, which is also the text for the model.
fn block(
    result: CodeExecutionResult,
    evidence: Option<Evidence>,
) -> Result<WithText<CodeExecutionResult>, ToolError> {
    let text = serde_json::to_string(&result)?;
    Ok(WithText { evidence, ..WithText::new(result, text) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
