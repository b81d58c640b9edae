//! Plans as YAML, as text and as Mermaid flowcharts.

use std::fmt::Write as _;

use super::types::{Action, Block, FailurePolicy, OnError, Plan, Step};

/// The action of a step, in a few words.
fn summary(step: &Step) -> String {
    match &step.action {
        Action::Tool { tool, .. } => tool.to_string(),
        Action::Wait(_) => "wait".to_owned(),
        Action::Signal(_) => "wait for a signal".to_owned(),
        Action::Approve(_) => "approve".to_owned(),
        Action::Group(body) => match body.failure {
            FailurePolicy::Quorum(1) => format!("race of {}", body.steps.len()),
            _ if body.is_pipeline => format!("pipeline of {}", body.steps.len()),
            _ => format!("block of {}", body.steps.len()),
        },
        Action::Map { item, max_parallel, failure, .. } => {
            let quorum = match failure {
                FailurePolicy::Quorum(count) => format!(", needs {count}"),
                _ => String::new(),
            };
            format!("map, each `{item}`, {max_parallel} at once{quorum}")
        }
        Action::Loop { max, until, .. } => match until {
            Some(until) => format!("loop until {until:?}, at most {max} times"),
            None => format!("loop, {max} times"),
        },
        Action::Flow { plan, .. } => format!("flow {}", plan.name),
    }
}

/// One line per step, each with the note for its path.
pub(super) fn outline(plan: &Plan, note: &dyn Fn(&str) -> Option<String>) -> String {
    let mut text = String::new();
    outline_block(&plan.body, "", 0, note, &mut text);
    text
}

fn outline_block(
    block: &Block,
    outer: &str,
    depth: usize,
    note: &dyn Fn(&str) -> Option<String>,
    text: &mut String,
) {
    for step in &block.steps {
        let path = format!("{outer}{}", step.id);
        let needs: Vec<&str> =
            step.needs.iter().filter_map(|need| Some(&*block.steps.get(*need)?.id)).collect();
        // Writing to a string cannot fail.
        let _ = write!(text, "{:indent$}{}: {}", "", step.id, summary(step), indent = depth * 2);
        if !needs.is_empty() {
            let _ = write!(text, ", after {}", needs.join(", "));
        }
        if let Some(when) = &step.when {
            let _ = write!(text, ", when {when:?}");
        }
        if step.evaluate {
            text.push_str(", runs values as code");
        }
        if step.retry.max > 0 {
            let _ = write!(text, ", {} retries", step.retry.max);
        }
        if let Some(description) = &step.description {
            let _ = write!(text, " — {description}");
        }
        if let Some(note) = note(&path) {
            let _ = write!(text, "  ({note})");
        }
        text.push('\n');
        let inner = format!("{path}.");
        match &step.action {
            Action::Group(body) | Action::Map { body, .. } | Action::Loop { body, .. } => {
                outline_block(body, &inner, depth + 1, note, text);
            }
            Action::Flow { plan, .. } => outline_block(&plan.body, &inner, depth + 1, note, text),
            _ => {}
        }
        let handler = if let OnError::Handle(handler) = &step.on_error { Some(handler) } else { None };
        for (title, part, inner) in
            [("on error", "error", handler), ("compensate", "undo", step.undo.as_ref())]
        {
            if let Some(inner) = inner {
                let _ = writeln!(text, "{:indent$}{title}:", "", indent = (depth + 1) * 2);
                outline_block(inner, &format!("{path}:{part}."), depth + 2, note, text);
            }
        }
    }
}

/// The file form.
pub(super) fn yaml(plan: &Plan) -> String {
    let options = serde_saphyr::ser_options! {
        compact_list_indent: false,
        // Folded lines would hide where a text has spaces.
        folded_wrap_chars: usize::MAX,
    };
    // JSON is YAML.
    serde_saphyr::to_string_with_options(&plan.source, options).unwrap_or_else(|_| plan.source.to_string())
}

/// A flowchart: blocks are subgraphs.
pub(super) fn mermaid(plan: &Plan) -> String {
    let mut text = String::from("flowchart TD\n");
    mermaid_block(&plan.body, "", 1, &mut text);
    text
}

fn mermaid_block(block: &Block, path: &str, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    let name =
        |step: &Step| if path.is_empty() { step.id.to_string() } else { format!("{path}_{}", step.id) };
    for step in &block.steps {
        let own = name(step);
        let label = format!("{}: {}", step.id, summary(step)).replace('"', "'").replace(['`', '<', '>'], "");
        let inner = match &step.action {
            Action::Group(body) | Action::Map { body, .. } | Action::Loop { body, .. } => Some(body),
            Action::Flow { plan, .. } => Some(&plan.body),
            _ => None,
        };
        match inner {
            Some(body) => {
                let _ = writeln!(text, "{indent}subgraph {own}[\"{label}\"]");
                mermaid_block(body, &own, depth + 1, text);
                let _ = writeln!(text, "{indent}end");
            }
            None => {
                let (open, close) = match step.action {
                    Action::Approve(_) | Action::Signal(_) => ("{{", "}}"),
                    Action::Wait(_) => ("([", "])"),
                    _ => ("[", "]"),
                };
                let _ = writeln!(text, "{indent}{own}{open}\"{label}\"{close}");
            }
        }
        for need in &step.needs {
            let Some(before) = block.steps.get(*need) else { continue };
            let arrow = if step.when.is_some() { "-.->" } else { "-->" };
            let _ = writeln!(text, "{indent}{} {arrow} {own}", name(before));
        }
    }
}
