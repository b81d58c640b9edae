//! Steps that wait: for a time, a signal, or a person.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{Timestamp, ToolError, parse_duration};

use super::scope::{Place, State};
use super::{Command, Machine, Unexpected, short};
use crate::event::OWN_ANSWERS;
use crate::outcome::StepStatus;
use crate::plan::types::Step;
use crate::report::StepWait;

/// The maximum number of signals that no step waits for yet.
const MAX_SIGNALS: usize = 1_000;

/// Where a value from outside arrives. A signal cannot answer an approval, whatever its name is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Channel {
    /// A signal with this name.
    Signal(String),
    /// The approval of the step with this path.
    Approval(String),
}

impl Channel {
    /// The name of the signal, or the path of the step.
    pub(super) fn name(&self) -> &str {
        let (Self::Signal(name) | Self::Approval(name)) = self;
        name
    }
}

impl Machine {
    /// Where the answer to an approval arrives. In runs of earlier formats, it is a signal with the path of the step.
    pub(super) fn approval(&self, path: &str) -> Channel {
        if self.format < OWN_ANSWERS {
            Channel::Signal(path.to_owned())
        } else {
            Channel::Approval(path.to_owned())
        }
    }

    pub(super) fn wait_for(
        &mut self,
        place: Place,
        step: &Step,
        path: &Arc<str>,
        channel: Channel,
        wait: StepWait,
    ) {
        let is_approval = matches!(wait, StepWait::Approval(_));
        if let Some(value) = pop(&mut self.signals, &channel) {
            self.early_signals -= 1;
            self.answered(place, is_approval, value);
            return;
        }
        self.waiting.entry(channel.clone()).or_default().push_back(place);
        self.working.insert(Arc::clone(path), place);
        self.set(place, State::Waiting { channel, is_approval });
        let until = step.timeout.map(|timeout| self.after(timeout));
        self.commands.push(Command::Await { step: Arc::clone(path), wait, until });
    }

    /// Takes a signal; one that no step waits for yet is for a later step.
    pub(super) fn signal(&mut self, channel: Channel, value: Value) -> Result<(), Unexpected> {
        let Some(place) = pop(&mut self.waiting, &channel) else {
            if self.early_signals >= MAX_SIGNALS {
                return Err(Unexpected(format!("more than {MAX_SIGNALS} signals wait for a step")));
            }
            self.early_signals += 1;
            self.signals.entry(channel).or_default().push_back(value);
            return Ok(());
        };
        self.arrived(place, value);
        Ok(())
    }

    /// Takes the answer to an approval, which must be open.
    pub(super) fn answer(&mut self, step: &str, answer: Value) -> Result<(), Unexpected> {
        match self.approval(step) {
            channel @ Channel::Signal(_) => self.signal(channel, answer),
            channel @ Channel::Approval(_) => {
                let place = pop(&mut self.waiting, &channel);
                let place = place
                    .ok_or_else(|| Unexpected(format!("the step `{step}` does not wait for an approval")))?;
                self.arrived(place, answer);
                Ok(())
            }
        }
    }

    /// Ends the wait of a step.
    fn arrived(&mut self, place: Place, value: Value) {
        let state = self.instances.get(place.scope).and_then(|scope| scope.states.get(place.step));
        let is_approval = matches!(state, Some(State::Waiting { is_approval: true, .. }));
        if let Some((_, path)) = self.step(place) {
            self.working.remove(&path);
            self.commands.push(Command::Answered { step: path });
        }
        self.answered(place, is_approval, value);
    }

    fn answered(&mut self, place: Place, is_approval: bool, value: Value) {
        let is_denied = is_approval && value.get("approved").and_then(Value::as_bool) != Some(true);
        if is_denied {
            let comment = value.get("comment").and_then(Value::as_str).map(|text| format!(": {text}"));
            let error = ToolError::new(
                toolpost_core::Code::Permission,
                format!("it was denied{}", comment.unwrap_or_default()),
            );
            self.step_failed(place, error);
        } else {
            self.finish(place, StepStatus::Succeeded, Arc::new(value), None);
        }
    }

    pub(super) fn forget_wait(&mut self, place: Place) {
        let state = self.instances.get(place.scope).and_then(|scope| scope.states.get(place.step));
        if let Some(State::Waiting { channel, .. }) = state
            && let Some(places) = self.waiting.get_mut(channel)
        {
            places.retain(|other| *other != place);
            if places.is_empty() {
                self.waiting.remove(channel);
            }
        }
    }
}

/// The time of a wait from `now` in milliseconds since 1970: a duration, or until a time.
pub(crate) fn wait_time(value: &Value, now: u64) -> Result<Duration, String> {
    let wrong = || {
        format!(
            "`wait` is a duration such as `5m` or a time such as `2030-01-31T08:00:00Z`, not {}",
            short(value)
        )
    };
    match value {
        Value::Number(seconds) => {
            let seconds = seconds.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            seconds.ok_or_else(wrong)
        }
        Value::String(text) => match parse_duration(text) {
            Ok(duration) => Ok(duration),
            Err(_) => {
                let until: Timestamp = serde_json::from_value(json!(text)).map_err(|_| wrong())?;
                Ok(Duration::from_millis((until.as_micros() / 1_000).saturating_sub(now)))
            }
        },
        _ => Err(wrong()),
    }
}

/// Takes the first value of a channel; no channel stays without a value.
fn pop<T>(queues: &mut BTreeMap<Channel, VecDeque<T>>, channel: &Channel) -> Option<T> {
    let queue = queues.get_mut(channel)?;
    let first = queue.pop_front();
    if queue.is_empty() {
        queues.remove(channel);
    }
    first
}
