//! The answers of an attempt, so that a retry does not ask again.

use std::sync::Arc;

use serde_json::Value;
use toolpost_core::{Answer, Question, Reply, Sample, SampleRequest};

/// The maximum number of stored answers; further questions are asked again.
const MAX_ANSWERS: usize = 1024;

/// A question with its answer.
pub(super) enum Answered {
    Ask(Question, Answer),
    Sample(SampleRequest, Sample),
    Nested { tool: String, arguments: Arc<Value>, reply: Box<Reply> },
}

/// The answers, by the position of their question in the attempt. A failed question leaves its position
/// empty.
#[derive(Default)]
pub(super) struct Replay {
    answers: Vec<Option<Answered>>,
    position: usize,
}

impl Replay {
    /// Starts the next attempt at its first question.
    pub(super) fn rewind(&mut self) {
        self.position = 0;
    }

    /// The position of the next question, and its answer if the question is the same.
    pub(super) fn next<T>(&mut self, same: impl FnOnce(&Answered) -> Option<T>) -> (usize, Option<T>) {
        let index = self.position;
        self.position += 1;
        (index, self.answers.get(index).and_then(Option::as_ref).and_then(same))
    }

    pub(super) fn remember(&mut self, index: usize, answer: Answered) {
        if index >= MAX_ANSWERS {
            return;
        }
        if self.answers.len() <= index {
            self.answers.resize_with(index + 1, || None);
        }
        if let Some(slot) = self.answers.get_mut(index) {
            *slot = Some(answer);
        }
    }
}
