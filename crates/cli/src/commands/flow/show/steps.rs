//! The steps of a stored run, as a tree.

use serde_json::{Value, json};
use toolpost_core::Timestamp;
use toolpost_flow::{StepReport, StepStatus, StepWait, ToolErrorText};

use super::elapsed;
use crate::style::{BAD, FAINT, GOOD, WARN, label, one_line, paint};

/// The number of items from which those that did not fail are a count.
const MANY: usize = 10;
/// The maximum number of failed items in a tree.
const MAX_FAILED: usize = 20;

/// The status: how the step ended, or `queued`, `running` or `waiting`.
fn status(step: &StepReport) -> &'static str {
    match step.status {
        Some(status) => status.as_str(),
        None if step.wait.is_some() => "waiting",
        None if step.started.is_some() => "running",
        None => "queued",
    }
}

/// Is an item of a map or an iteration of a loop.
fn is_instance(step: &StepReport) -> bool {
    step.name().starts_with('[')
}

/// A step as JSON, with those within it.
pub(super) fn to_json(step: &StepReport) -> Value {
    let mut value = json!({ "id": step.name(), "path": step.path, "status": status(step) });
    let wait = step.wait.as_ref().map(|wait| match wait {
        StepWait::Until(time) => json!({ "until": time }),
        StepWait::Signal(name) => json!({ "signal": name }),
        StepWait::Approval(question) => json!({ "approval": question }),
        _ => Value::Null,
    });
    let duration = step.started.zip(step.ended);
    let duration =
        duration.map(|(from, to)| json!(to.as_micros().saturating_sub(from.as_micros()) as f64 / 1e3));
    let steps: Vec<Value> = step.steps.iter().map(to_json).collect();
    for (name, member) in [
        ("tool", step.tool.as_deref().map(Value::from)),
        ("started", step.started.map(|at| json!(at))),
        ("ended", step.ended.map(|at| json!(at))),
        ("duration_ms", duration),
        ("attempts", (step.attempts > 0).then(|| step.attempts.into())),
        ("error", step.error.as_ref().map(|error| json!(error))),
        ("waits_for", wait),
        ("deadline", step.deadline.map(|at| json!(at))),
        ("steps", (!steps.is_empty()).then(|| steps.into())),
    ] {
        if let Some(member) = member {
            value[name] = member;
        }
    }
    value
}

/// Adds a line per step, and with `is_verbose` all lines of its error. Steps that have not ended have the time until `now`.
pub(super) fn add(
    steps: &[StepReport],
    depth: usize,
    now: Timestamp,
    is_verbose: bool,
    lines: &mut Vec<String>,
) {
    let is_many = steps.iter().filter(|step| is_instance(step)).count() > MANY;
    let mut failed = 0;
    for step in steps {
        if is_many && is_instance(step) {
            failed += usize::from(step.status == Some(StepStatus::Failed));
            if step.status != Some(StepStatus::Failed) || failed > MAX_FAILED {
                continue;
            }
        }
        lines.push(format!("{:indent$}{}", "", line(step, now, is_verbose), indent = 2 * depth));
        if let Some(error) = own_error(step).filter(|_| is_verbose) {
            // The whole error of a program has many lines.
            let rest = error.message.lines().skip(1);
            lines.extend(rest.map(|line| format!("{:indent$}│ {}", "", label(line), indent = 2 * depth + 4)));
        }
        add(&step.steps, depth + 1, now, is_verbose, lines);
    }
    if is_many {
        lines.push(format!("{:indent$}{}", "", paint(FAINT, summary(steps)), indent = 2 * depth));
    }
}

/// The counts of many items.
fn summary(steps: &[StepReport]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for step in steps.iter().filter(|step| is_instance(step)) {
        match counts.iter_mut().find(|(name, _)| *name == status(step)) {
            Some((_, count)) => *count += 1,
            None => counts.push((status(step), 1)),
        }
    }
    let total: usize = counts.iter().map(|(_, count)| count).sum();
    let counts: Vec<String> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    format!("{total} items: {}", counts.join(", "))
}

/// The error of a step. That of a block is shown at the step within it.
fn own_error(step: &StepReport) -> Option<&ToolErrorText> {
    let error = step.error.as_ref()?;
    let is_same = |inner: &&ToolErrorText| (&inner.code, &inner.message) == (&error.code, &error.message);
    let is_inner = step.steps.iter().filter_map(|inner| inner.error.as_ref()).any(|inner| is_same(&inner));
    (!is_inner).then_some(error)
}

fn line(step: &StepReport, now: Timestamp, is_verbose: bool) -> String {
    let status = status(step);
    let sign = match status {
        "succeeded" => paint(GOOD, "✓"),
        "failed" => paint(BAD, "✗"),
        "running" | "waiting" | "queued" => paint(WARN, "…"),
        _ => paint(FAINT, "-"),
    };
    let mut facts: Vec<String> = Vec::new();
    if !matches!(status, "succeeded" | "failed" | "running") {
        facts.push(status.to_owned());
    }
    let is_due = matches!(
        step.status,
        Some(StepStatus::Succeeded | StepStatus::Failed | StepStatus::Cancelled) | None
    );
    if let Some(from) = step.started.filter(|_| is_due) {
        facts.push(elapsed(from, step.ended.unwrap_or(now)));
    }
    if step.attempts > 1 {
        facts.push(format!("{} attempts", step.attempts));
    }
    let deadline = step.deadline.filter(|_| step.status.is_none());
    facts.extend(deadline.map(|at| format!("deadline {at}")));
    let wait = step.wait.as_ref().map(|wait| match wait {
        StepWait::Until(time) => format!("until {time}"),
        StepWait::Signal(name) => format!("signal {}", one_line(name, 60)),
        StepWait::Approval(question) => format!("approval: {}", one_line(question, 100)),
        _ => String::new(),
    });
    facts.extend(wait);
    let name = match step.name() {
        ":error" => "on error".to_owned(),
        ":undo" => "compensate".to_owned(),
        name => one_line(name, 60),
    };
    let error = own_error(step).map(|error| {
        let (first, more) = match error.message.split_once('\n') {
            Some((first, _)) => {
                (first.trim_end_matches(':'), if is_verbose { ":" } else { " (`-v` shows it)" })
            }
            None => (error.message.as_str(), ""),
        };
        format!("  {}{more}", one_line(&format!("{}: {first}", error.code), 160))
    });
    format!("{sign} {name}  {}{}", paint(FAINT, facts.join(", ")), error.unwrap_or_default())
}
