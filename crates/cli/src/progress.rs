//! Prints events of runs and calls, for people or as JSON Lines.

pub(crate) mod calls;
pub(crate) mod hosted;
pub(crate) mod lines;
mod masked;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use toolpost_agent::RunStopReason;
use toolpost_core::{Event, EventSink, LogLevel, RunId, RunRecord};

use self::calls::Calls;
use self::lines::{WIDTH, is_printed, scrubbed_line};
use self::masked::Masked;
use crate::args::Format;
use crate::logs;
use crate::print::Printer;
use crate::style::{FAINT, WARN, harmless, paint, paragraph};
use crate::terminal::Screen;

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
