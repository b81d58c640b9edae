//! Text output for a terminal.

use std::fmt::Write as _;

use serde_json::Value;
use toolpost_core::{Output, Partial, ToolError, harmless};

use crate::protocol::dialect::Notice;

/// Formats a result: its text, its fields one per line, or indented JSON.
pub(super) fn result(output: &Output) -> String {
    let text = match &output.structured {
        Some(value) if output.content.is_empty() => readable(value),
        _ => output.to_text().into_owned(),
    };
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    harmless(&text) + end
}

/// Formats an error and its suggestion.
pub(super) fn failure(error: &ToolError) -> String {
    let mut text = format!("error: {}\n", error.message());
    if let Some(hint) = error.suggestion() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "hint: {hint}");
    }
    harmless(&text)
}

/// Formats the errors of a partial result.
pub(super) fn partial(partial: &Partial) -> String {
    let total = partial.succeeded + partial.errors.len();
    let mut text = format!("warning: {} of {total} failed\n", partial.errors.len());
    for error in &partial.errors {
        let _ = writeln!(text, "  {}", error.message());
    }
    harmless(&text)
}

/// Formats a notice.
pub(super) fn notice(notice: &Notice) -> String {
    let text = match notice {
        Notice::Progress { message, percent: Some(percent) } => format!("… {message} {percent:.0} %\n"),
        Notice::Progress { message, percent: None } => format!("… {message}\n"),
        Notice::Log { level, message } => format!("{level}: {message}\n"),
        Notice::Artifact { name, .. } => format!("created {name}\n"),
    };
    harmless(&text)
}

fn readable(value: &Value) -> String {
    let is_flat = |value: &Value| !matches!(value, Value::Array(_) | Value::Object(_));
    match value {
        Value::String(text) => text.clone(),
        Value::Object(fields) if !fields.is_empty() && fields.values().all(is_flat) => {
            let width = fields.keys().map(|key| key.chars().count()).max().unwrap_or_default() + 1;
            let lines = fields.iter().map(|(key, value)| {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                format!("{:<width$} {text}\n", format!("{key}:"))
            });
            lines.collect()
        }
        other => serde_json::to_string_pretty(other).unwrap_or_default(),
    }
}
