//! What a person sees while a run goes on, and what a program is told.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use toolpost_core::{CallRecord, Event, EventSink, LogLevel, format_duration};

use crate::args::Format;
use crate::print::Printer;
use crate::style::{BAD, FAINT, GOOD, HINT, STRONG, WARN, harmless, one_line, paint};

/// How much of a value is shown on one line.
const WIDTH: usize = 100;

/// A sink for events: lines for a person on standard error, or JSON lines for a program on standard output.
pub(crate) fn sink(printer: &Printer) -> EventSink {
    let printer = printer.clone();
    let text = Mutex::new(String::new());
    Arc::new(move |event: &Event| match printer.format {
        Format::Jsonl => {
            // A reader that went away is noticed at the end.
            let _ = printer.json(event);
        }
        Format::Json => {}
        Format::Text => tell(&printer, &text, event),
    })
}

fn tell(printer: &Printer, spoken: &Mutex<String>, event: &Event) {
    let mut spoken = spoken.lock().unwrap_or_else(PoisonError::into_inner);
    match event {
        Event::TextDelta { text, .. } => spoken.push_str(text),
        Event::TurnFinished { stop_reason, .. } => {
            let said = std::mem::take(&mut *spoken);
            // The last words are the result, and that goes to standard output.
            if stop_reason == "tool_use" && !said.trim().is_empty() {
                printer.note(&harmless(said.trim()));
            }
        }
        Event::Notice { message } => printer.note(&format!("{} {}", paint(WARN, "note:"), harmless(message))),
        Event::CallStarted { tool, arguments, .. } => {
            printer.note(&format!(
                "{} {} {}",
                paint(HINT, "→"),
                paint(STRONG, tool),
                paint(FAINT, brief(arguments))
            ));
        }
        Event::CallProgress { progress, .. } => {
            let percent = progress.percent.map(|percent| format!(" {percent:.0} %")).unwrap_or_default();
            printer.note(&paint(FAINT, format!("  … {}{percent}", one_line(&progress.message, WIDTH))));
        }
        Event::CallLog { line, .. } if printer.verbose > 0 || line.level >= LogLevel::Info => {
            let style = if line.level >= LogLevel::Warn { WARN } else { FAINT };
            printer.note(&paint(style, format!("  │ {}", one_line(&line.message, WIDTH))));
        }
        Event::CallRetry { attempt, error, wait_ms, .. } => {
            let line = format!(
                "  attempt {attempt} failed ({}); again in {wait_ms} ms",
                one_line(error.message(), WIDTH)
            );
            printer.note(&paint(WARN, line));
        }
        Event::CallFinished { record } => printer.note(&finished(record)),
        _ => {}
    }
}

/// The arguments of a call, on one line.
fn brief(arguments: &Value) -> String {
    let Some(map) = arguments.as_object() else { return one_line(&arguments.to_string(), WIDTH) };
    let pairs: Vec<String> = map
        .iter()
        .map(|(key, value)| match value {
            Value::String(text) if text.contains('\n') => format!("{key}=({} lines)", text.lines().count()),
            Value::String(text) => format!("{key}={text}"),
            other => format!("{key}={other}"),
        })
        .collect();
    one_line(&pairs.join(" "), WIDTH)
}

fn finished(record: &CallRecord) -> String {
    let took = format_duration(record.duration);
    match &record.error {
        Some(error) => {
            let line = one_line(&error.to_string(), 2 * WIDTH);
            format!(
                "{} {} {line} {}",
                paint(BAD, "✗"),
                paint(STRONG, &record.tool),
                paint(FAINT, format!("({took})"))
            )
        }
        None => {
            let mut facts = vec![took, format!("{} bytes", record.content_bytes)];
            facts.extend(sandbox(record));
            if record.cached {
                facts.push("cached".into());
            }
            format!(
                "{} {} {}",
                paint(GOOD, "✓"),
                paint(STRONG, &record.tool),
                paint(FAINT, format!("({})", facts.join(", ")))
            )
        }
    }
}

/// What the sandbox attests, in a few words.
fn sandbox(record: &CallRecord) -> Option<String> {
    let report = record.sandbox.as_ref()?.get("report")?;
    let level = report.get("effective")?.as_str()?;
    let layers = report.get("layers")?.as_array()?.len();
    Some(format!("sandbox {level}, {layers} layers"))
}
