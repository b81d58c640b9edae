//! What the outside world has answered, so that an attempt that is run again asks nobody twice.

use std::sync::Arc;

use serde_json::Value;
use toolpost_core::{Answer, Question, Reply, Sample, SampleRequest};

/// How many answers are kept; an attempt that asks more often asks again.
const MAX_ANSWERS: usize = 1024;

/// Something that the outside world answered, with what it was asked.
pub(super) enum Answered {
    Ask(Question, Answer),
    Sample(SampleRequest, Sample),
    Nested { tool: String, arguments: Arc<Value>, reply: Box<Reply> },
}

/// The answers by the position of their question among all that an attempt asks. A question that failed leaves its
/// place empty, so that those after it keep theirs.
#[derive(Default)]
pub(super) struct Replay {
    answers: Vec<Option<Answered>>,
    position: usize,
}

impl Replay {
    /// The next attempt begins with its first question.
    pub(super) fn rewind(&mut self) {
        self.position = 0;
    }

    /// The place of the next question, and the answer that stands there, if it is one to the same question.
    pub(super) fn next<T>(&mut self, same: impl FnOnce(&Answered) -> Option<T>) -> (usize, Option<T>) {
        let place = self.position;
        self.position += 1;
        (place, self.answers.get(place).and_then(Option::as_ref).and_then(same))
    }

    pub(super) fn remember(&mut self, place: usize, answer: Answered) {
        if place >= MAX_ANSWERS {
            return;
        }
        if self.answers.len() <= place {
            self.answers.resize_with(place + 1, || None);
        }
        if let Some(slot) = self.answers.get_mut(place) {
            *slot = Some(answer);
        }
    }
}
