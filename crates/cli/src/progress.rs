//! Prints events of runs and calls, for people or as JSON Lines.

mod calls;
pub(crate) mod hosted;
mod masked;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use toolpost_agent::RunStopReason;
use toolpost_core::{
    CallRecord, Event, EventSink, LogLevel, LogLine, RunId, RunRecord, ToolError, format_duration,
};

pub(crate) use self::calls::Calls;
use self::masked::Masked;
use crate::args::Format;
use crate::print::Printer;
use crate::style::{BAD, FAINT, GOOD, HINT, STRONG, WARN, harmless, one_line, paint, paragraph};
use crate::terminal::Screen;
use crate::{env, logs};

/// The maximum width of a value on one line.
pub(crate) const WIDTH: usize = 100;

/// A sink that prints events: text on standard error, or JSON Lines on standard output.
pub(crate) fn sink(printer: &Printer) -> EventSink {
    sink_of(printer, None)
}

/// A sink that draws on a screen, if there is one.
pub(crate) fn sink_of(printer: &Printer, screen: Option<Arc<Screen>>) -> EventSink {
    let printer = printer.clone();
    let unprinted = Mutex::new(Unprinted::default());
    let masked = Masked::default();
    let inner = Inner::default();
    Arc::new(move |event: &Event| {
        logs::event(event);
        masked.pass(event, |event| match (printer.format, event) {
            (Format::Text, event) if inner.says(event) => {}
            // Artifacts are stored after the run, so the command prints the last event.
            (Format::Jsonl, Event::RunFinished { .. }) | (Format::Json, _) => {}
            (Format::Jsonl, event) => {
                // The end of the command reports a broken pipe.
                let _ = printer.event(event);
            }
            (Format::Text, event) => match &screen {
                Some(screen) => screen.handle(event),
                None => print_event(&printer, &unprinted, event),
            },
        });
    })
}

/// Untrusted text on one line: escaped, truncated, and without secrets.
pub(crate) fn scrubbed_line(text: &str, width: usize) -> String {
    one_line(&env::scrubber().scrub(text.to_owned()), width)
}

/// The runs of agents that are tools, whose text is a call's result.
#[derive(Default)]
struct Inner(Mutex<HashSet<RunId>>);

impl Inner {
    /// Whether an event is text of such a run.
    fn says(&self, event: &Event) -> bool {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::RunStarted { run, parent: Some(_), .. } => !runs.insert(*run),
            Event::RunFinished { record } => runs.remove(&record.id),
            Event::TextDelta { run, .. } | Event::TurnFinished { run, .. } => runs.contains(run),
            _ => false,
        }
    }
}

/// Text that was not printed yet, and the running calls.
#[derive(Default)]
struct Unprinted {
    text_so_far: String,
    calls: Calls,
}

fn print_event(printer: &Printer, unprinted: &Mutex<Unprinted>, event: &Event) {
    let mut unprinted = unprinted.lock().unwrap_or_else(PoisonError::into_inner);
    let Unprinted { text_so_far, calls } = &mut *unprinted;
    match event {
        Event::TextDelta { text, .. } => text_so_far.push_str(text),
        Event::TurnFinished { stop_reason, .. } => {
            let text = std::mem::take(text_so_far);
            // The last text is the result on standard output.
            if stop_reason == "tool_use" && !text.trim().is_empty() {
                printer.note(&harmless(text.trim()));
            } else if !matches!(stop_reason.as_str(), "end_turn" | "stop_sequence") {
                *text_so_far = text;
            }
        }
        // Text without an answer is printed too.
        Event::RunFinished { record }
            if !record.success && !has_final_text(record) && !text_so_far.trim().is_empty() =>
        {
            printer.note(&harmless(text_so_far.trim()));
        }
        Event::Notice { message } => {
            printer.note(&format!("{} {}", paint(WARN, "note:"), paragraph(message)));
        }
        Event::HostedStarted { tool, input, .. } => {
            printer.note(&hosted::started(tool, input.as_deref()).join("\n"));
        }
        Event::HostedFinished { tool, output, .. } => {
            printer.note(&hosted::finished(tool, output).join("\n"));
        }
        Event::CallStarted { call, parent, tool, arguments } => {
            printer.note(&calls.started(*call, *parent, tool, arguments));
        }
        Event::CallProgress { call, progress } => {
            let percent = progress.percent.map(|percent| format!(" {percent:.0} %")).unwrap_or_default();
            let text = format!("{}{percent}", scrubbed_line(&progress.message, WIDTH));
            printer.note(&paint(FAINT, calls.within(*call, "…", &text)));
        }
        Event::CallLog { call, line } if is_printed(printer, line) => {
            let style = if line.level >= LogLevel::Warn { WARN } else { FAINT };
            printer.note(&paint(style, calls.within(*call, "│", &scrubbed_line(&line.message, WIDTH))));
        }
        Event::CallRetry { call, attempt, error, wait_ms } => {
            printer.note(&calls.again(*call, *attempt, error, *wait_ms));
        }
        Event::CallFinished { record } => printer.note(&calls.finished(record)),
        _ => {}
    }
}

/// Whether a run at a limit has text for the result: a summary or a truncated answer.
pub(crate) fn has_final_text(record: &RunRecord) -> bool {
    record.wrapped_up || record.stop_reason == RunStopReason::OutputTokens.as_str()
}

/// The maximum width of a tool's name, which a model may have invented.
pub(crate) const NAME: usize = 64;

/// The line of a started call.
pub(crate) fn started(name: &str, arguments: &Value) -> String {
    let call = format!("{} {}", paint(HINT, "→"), paint(STRONG, name));
    match brief(arguments) {
        arguments if arguments.is_empty() => call,
        arguments => format!("{call} {}", paint(FAINT, arguments)),
    }
}

/// The line of a retried call.
fn again(name: &str, attempt: u32, error: &ToolError, wait_ms: u64) -> String {
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
            let mut facts = vec![took, format!("{} bytes", record.content_bytes)];
            facts.extend(sandbox(record));
            if record.cached {
                facts.push("cached".into());
            }
            let facts = paint(FAINT, format!("({})", facts.join(", ")));
            // The call succeeded, but its code may have failed.
            match failed(record) {
                Some(how) => format!("{} {name} {how} {facts}", paint(WARN, "!")),
                None => format!("{} {name} {facts}", paint(GOOD, "✓")),
            }
        }
    }
}

/// The verdict of failed code.
fn failed(record: &CallRecord) -> Option<String> {
    let kind = record.sandbox.as_ref()?.get("verdict")?.get("kind")?.as_str()?;
    (kind != "ok").then(|| scrubbed_line(kind, NAME))
}

/// The attested layers in a few words.
fn sandbox(record: &CallRecord) -> Option<String> {
    let report = record.sandbox.as_ref()?.get("report")?;
    let level = report.get("effective")?.as_str()?;
    let layers = report.get("layers")?.as_array()?.len();
    Some(format!("sandbox {level}, {layers} layers"))
}
