//! Masks secrets in streamed text, also those split between two pieces.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use toolpost_core::{Event, RunId};
use toolpost_llm::StreamScrubber;

use crate::env;

/// The open text of each run.
#[derive(Default)]
pub(super) struct Masked {
    open: Mutex<BTreeMap<RunId, Open>>,
}

struct Open {
    is_thinking: bool,
    text: StreamScrubber<'static>,
}

impl Masked {
    /// Passes an event on, after the text that was held back.
    pub(super) fn pass(&self, event: &Event, emit: impl Fn(&Event)) {
        // Holding the lock keeps the order of events.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let (run, is_thinking, piece) = match event {
            Event::TextDelta { run, text } => (*run, false, text),
            Event::ThinkingDelta { run, text } => (*run, true, text),
            other => {
                if let Some((run, ended)) = ended_by(other).and_then(|run| Some((run, open.remove(&run)?))) {
                    ended.end(run, emit_piece(&emit));
                }
                return emit(other);
            }
        };
        if open.get(&run).is_some_and(|open| open.is_thinking != is_thinking)
            && let Some(ended) = open.remove(&run)
        {
            ended.end(run, emit_piece(&emit));
        }
        let text =
            &mut open.entry(run).or_insert_with(|| Open { is_thinking, text: env::scrubber().stream() }).text;
        emit_piece(&emit)(run, is_thinking, text.push(piece));
    }
}

impl Open {
    fn end(mut self, run: RunId, emit: impl Fn(RunId, bool, String)) {
        emit(run, self.is_thinking, self.text.finish());
    }
}

/// Passes a piece of text on, unless it is empty.
fn emit_piece(emit: &impl Fn(&Event)) -> impl Fn(RunId, bool, String) {
    move |run, is_thinking, text| match (text.is_empty(), is_thinking) {
        (true, _) => {}
        (false, false) => emit(&Event::TextDelta { run, text }),
        (false, true) => emit(&Event::ThinkingDelta { run, text }),
    }
}

/// The run whose text an event ends.
fn ended_by(event: &Event) -> Option<RunId> {
    match event {
        Event::TurnStarted { run, .. }
        | Event::TurnFinished { run, .. }
        | Event::HostedStarted { run, .. }
        | Event::HostedFinished { run, .. } => Some(*run),
        Event::RunFinished { record } => Some(record.id),
        _ => None,
    }
}
