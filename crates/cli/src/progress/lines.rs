//! Lines of calls, without names and indentation.

use std::time::Duration;

use serde_json::Value;
use toolpost_core::{CallRecord, LogLevel, LogLine, ToolError, format_duration};

use crate::env;
use crate::outcome::{count, evidence};
use crate::print::Printer;
use crate::style::{BAD, FAINT, GOOD, HINT, STRONG, WARN, one_line, paint};

/// The maximum width of a value on one line.
pub(crate) const WIDTH: usize = 100;

/// The maximum width of a tool's name, which a model may have invented.
pub(crate) const NAME: usize = 64;

/// Untrusted text on one line: escaped, truncated, and without secrets.
pub(crate) fn scrubbed_line(text: &str, width: usize) -> String {
    one_line(&env::scrubber().scrub(text.to_owned()), width)
}

/// The line of a started call.
pub(crate) fn started(name: &str, arguments: &Value) -> String {
    let call = format!("{} {}", paint(HINT, "→"), paint(STRONG, name));
    match brief(arguments) {
        arguments if arguments.is_empty() => call,
        arguments => format!("{call} {}", paint(FAINT, arguments)),
    }
}

/// The line of a retried call.
pub(super) fn again(name: &str, attempt: u32, error: &ToolError, wait_ms: u64) -> String {
    let why = scrubbed_line(error.message(), WIDTH);
    let wait = format_duration(Duration::from_millis(wait_ms));
    paint(WARN, format!("  {name}attempt {attempt} failed ({why}); retry in {wait}"))
}

/// Whether a log line of a tool is printed.
pub(crate) fn is_printed(printer: &Printer, line: &LogLine) -> bool {
    printer.verbose > 0 || line.level >= LogLevel::Info
}

/// The arguments of a call on one line.
fn brief(arguments: &Value) -> String {
    let Some(map) = arguments.as_object() else { return scrubbed_line(&arguments.to_string(), WIDTH) };
    let pairs: Vec<String> = map
        .iter()
        .map(|(key, value)| match value {
            Value::String(text) if text.contains('\n') => format!("{key}=({} lines)", text.lines().count()),
            Value::String(text) => format!("{key}={text}"),
            other => format!("{key}={other}"),
        })
        .collect();
    scrubbed_line(&pairs.join(" "), WIDTH)
}

/// The line of a finished call.
pub(crate) fn finished(name: &str, record: &CallRecord) -> String {
    let took = format_duration(record.duration);
    let name = paint(STRONG, name);
    match &record.error {
        Some(error) => {
            let why = format!("{}: {}", error.code(), error.message());
            let why = scrubbed_line(&why, 2 * WIDTH);
            format!("{} {name} {why} {}", paint(BAD, "✗"), paint(FAINT, format!("({took})")))
        }
        None => {
            let mut facts = vec![took, count(record.content_bytes, "byte")];
            facts.extend(sandbox(record));
            if record.cached {
                facts.push("cached".into());
            }
            let facts = paint(FAINT, format!("({})", facts.join(", ")));
            // The call succeeded, but its code may have failed.
            match record.verdict().and_then(failed) {
                Some(how) => format!("{} {name} {how} {facts}", paint(WARN, "!")),
                None => format!("{} {name} {facts}", paint(GOOD, "✓")),
            }
        }
    }
}

/// The verdict of failed code.
pub(crate) fn failed(verdict: &str) -> Option<String> {
    (verdict != "ok").then(|| scrubbed_line(verdict, NAME))
}

/// The attested layers in a few words.
fn sandbox(record: &CallRecord) -> Option<String> {
    let report = evidence(record)?.report?;
    Some(format!("sandbox {}, {} layers", report.effective, report.layers.len()))
}
