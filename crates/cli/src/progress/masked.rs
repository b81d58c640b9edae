//! What models say piece by piece, without the keys and tokens that are set, also where one is cut between two pieces.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use toolpost_core::{Event, RunId};
use toolpost_llm::StreamScrubber;

use crate::env;

/// The texts that are being written, one a run.
#[derive(Default)]
pub(super) struct Masked {
    open: Mutex<BTreeMap<RunId, Open>>,
}

struct Open {
    is_thinking: bool,
    text: StreamScrubber<'static>,
}

impl Masked {
    /// Passes an event on, and before it what was held back and turned out to be harmless.
    pub(super) fn pass(&self, event: &Event, tell: impl Fn(&Event)) {
        // Whoever is told is told in order.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let (run, is_thinking, piece) = match event {
            Event::TextDelta { run, text } => (*run, false, text),
            Event::ThinkingDelta { run, text } => (*run, true, text),
            other => {
                if let Some((run, ended)) = ended_by(other).and_then(|run| Some((run, open.remove(&run)?))) {
                    ended.end(run, tell_piece(&tell));
                }
                return tell(other);
            }
        };
        if open.get(&run).is_some_and(|open| open.is_thinking != is_thinking)
            && let Some(ended) = open.remove(&run)
        {
            ended.end(run, tell_piece(&tell));
        }
        let text =
            &mut open.entry(run).or_insert_with(|| Open { is_thinking, text: env::scrubber().stream() }).text;
        tell_piece(&tell)(run, is_thinking, text.push(piece));
    }
}

impl Open {
    fn end(mut self, run: RunId, tell: impl Fn(RunId, bool, String)) {
        tell(run, self.is_thinking, self.text.finish());
    }
}

/// Tells a piece of text, if there is any.
fn tell_piece(tell: &impl Fn(&Event)) -> impl Fn(RunId, bool, String) {
    move |run, is_thinking, text| match (text.is_empty(), is_thinking) {
        (true, _) => {}
        (false, false) => tell(&Event::TextDelta { run, text }),
        (false, true) => tell(&Event::ThinkingDelta { run, text }),
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
