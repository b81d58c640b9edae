//! The display of a run, as steps and words.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use toolpost_flow::FlowProgress;

/// A step and an event of it: `start`, the code of an attempt's error, `wait`, or the status of its end.
pub(crate) type Entry = (String, String);

/// The events of a run in the order in which they were shown.
#[derive(Clone, Default)]
pub(crate) struct Trace(Arc<Mutex<Vec<Entry>>>);

impl Trace {
    pub(crate) fn show(&self, progress: &FlowProgress) {
        let (step, word) = match progress {
            FlowProgress::Started { step, .. } => (step, "start"),
            FlowProgress::AttemptFailed { step, error } => (step, error.code().as_str()),
            FlowProgress::Waiting { step, .. } => (step, "wait"),
            FlowProgress::Ended { step, status, .. } => (step, status.as_str()),
            _ => return,
        };
        self.0.lock().unwrap().push((step.to_string(), word.to_owned()));
    }

    /// Has an event, such as `a start`.
    pub(crate) fn has(&self, event: &str) -> bool {
        let (step, word) = event.rsplit_once(' ').unwrap();
        self.0.lock().unwrap().iter().any(|(own, shown)| own == step && shown == word)
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.0.lock().unwrap().clone()
    }
}

/// The words of each step, in their order.
pub(super) fn by_step(trace: &[Entry]) -> BTreeMap<&str, Vec<&str>> {
    let mut steps: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (step, word) in trace {
        steps.entry(step).or_default().push(word);
    }
    steps
}

/// The words of one step.
pub(super) fn of<'a>(steps: &BTreeMap<&str, Vec<&'a str>>, step: &str) -> Vec<&'a str> {
    steps.get(step).cloned().unwrap_or_default()
}

/// Whether a word ends a step.
pub(super) fn is_end(word: &str) -> bool {
    matches!(word, "succeeded" | "failed" | "skipped" | "blocked" | "cancelled")
}
