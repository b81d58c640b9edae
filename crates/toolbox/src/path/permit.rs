//! The approval of calls.

use std::sync::Arc;

use serde_json::Value;
use tokio::time::timeout;
use toolpost_core::{
    Answer, Approval, Call, Code, Hint, Question, QuestionKind, Secret, ToolError, format_duration,
};

use super::check::masked;
use super::host::CallHost;
use super::pause::Pause;
use crate::registry::Entry;
use crate::shared::Shared;

/// The operator's setting decides. Without one, the stricter of the operator's default and the tool's own
/// setting does. A destructive tool of a source needs a question.
pub(crate) fn approval(toolbox: &Shared, entry: &Entry) -> Approval {
    if let Some(decided) = toolbox.config.approvals.get(&*entry.name) {
        return *decided;
    }
    // A setting for an alias applies too; the strictest decides.
    let by_alias = entry.spec.aliases.iter().filter_map(|alias| toolbox.config.approvals.get(&alias.name));
    if let Some(decided) = by_alias.max() {
        return *decided;
    }
    let own = entry.spec.policy.approval.unwrap_or_default();
    let foreign =
        if !entry.is_local() && entry.spec.annotations.destructive { Approval::Ask } else { Approval::Allow };
    own.max(foreign).max(toolbox.config.default_approval.unwrap_or_default())
}

fn denied(entry: &Entry, why: &str) -> ToolError {
    ToolError::permission(format!("`{}` was not run: {why}", entry.name))
        .with("rule", "approval")
        .suggest(Hint::Approve { tool: entry.name.to_string() })
}

pub(super) async fn decide(
    toolbox: &Shared,
    entry: &Entry,
    call: &Call,
    parent: Option<&Arc<CallHost>>,
    secrets: &[Secret],
) -> Result<(), ToolError> {
    match approval(toolbox, entry) {
        Approval::Allow => Ok(()),
        Approval::Deny => Err(denied(entry, "the policy denies it")),
        // A mock or dry run does nothing, and an outer toolbox has already asked.
        Approval::Ask if call.options.dry_run || call.options.mock || call.approved => Ok(()),
        Approval::Ask => {
            // The clocks of the waiting calls stop for the answer.
            let pause = parent.map(|parent| Pause::begin(parent));
            let answer = Box::pin(ask(toolbox, entry, call, secrets)).await;
            if let Some(pause) = pause {
                Box::pin(pause.end()).await?;
            }
            answer
        }
    }
}

async fn ask(toolbox: &Shared, entry: &Entry, call: &Call, secrets: &[Secret]) -> Result<(), ToolError> {
    let question = Question {
        message: format!("May `{}` be run?", entry.name),
        kind: QuestionKind::Approval {
            tool: entry.name.to_string(),
            arguments: masked(entry, &call.arguments, secrets),
        },
        name: Some("approve".to_owned()),
    };
    let limit = toolbox.settings().answer_timeout;
    let answer = tokio::select! {
        answer = timeout(limit, call.port.ask(call.id, &question)) => answer,
        () = call.cancellation.cancelled() => return Err(ToolError::cancelled("the caller cancelled the call")),
        () = super::clock::sleep_until(call.deadline) => {
            return Err(ToolError::timeout("the deadline passed before the approval"));
        }
    };
    match answer {
        Ok(Ok(Answer::Given { value: Value::Bool(true) })) => Ok(()),
        Ok(Ok(_)) => Err(denied(entry, "the approval was refused")),
        Ok(Err(error)) if error.code() == Code::Precondition => {
            Err(denied(entry, "it needs approval, and this caller cannot be asked"))
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Err(denied(
            entry,
            &format!("it needs approval, and no answer came in {}", format_duration(limit)),
        )),
    }
}
