//! Events of a run, in the order in which they are stored.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_core::{ToolError, Truncation};

/// The version of the format of stored events.
pub(crate) const VERSION: u8 = 2;
/// The first version in which the answer to an approval is not a signal with the path of its step.
pub(crate) const OWN_ANSWERS: u8 = 2;

/// One event of a run. What follows from it, such as the start of the next step, is not stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum FlowEvent {
    /// The run began: always the first event.
    RunStarted {
        /// The version of the format.
        v: u8,
        /// The plan as data, with its sub-flows.
        plan: Value,
        /// The SHA-256 of the plan.
        hash: String,
        /// The checked inputs.
        input: Value,
    },
    /// An attempt of a step began. It may be stored after the step's end, since nothing depends on it.
    StepStarted {
        /// The path of the step.
        step: String,
        /// The number of the attempt, from 1.
        attempt: u32,
    },
    /// A step ended with an output.
    StepSucceeded {
        /// The path of the step.
        step: String,
        /// Its output.
        output: Value,
        /// The parts of the output that a limit truncated, which the plan does not use.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        truncated: Vec<Truncation>,
    },
    /// An attempt of a step failed.
    StepFailed {
        /// The path of the step.
        step: String,
        /// The reason.
        error: ToolError,
    },
    /// A step was stopped.
    StepCancelled {
        /// The path of the step.
        step: String,
    },
    /// A value from outside arrived.
    Signal {
        /// The name that a step waits for.
        name: String,
        /// The value.
        value: Value,
    },
    /// A person answered an approval.
    Answered {
        /// The path of the step.
        step: String,
        /// An object with `approved`, and optionally `by` and `comment`.
        answer: Value,
    },
    /// The run shall end.
    CancelRequested {
        /// The reason.
        reason: String,
    },
    /// Another process continues the run.
    Resumed {
        /// The process.
        owner: String,
    },
}

impl FlowEvent {
    /// The version of the format of stored runs.
    pub const FORMAT: u8 = VERSION;

    /// The path of the step whose attempt began or ended.
    pub fn step(&self) -> Option<&str> {
        match self {
            Self::StepStarted { step, .. }
            | Self::StepSucceeded { step, .. }
            | Self::StepFailed { step, .. }
            | Self::StepCancelled { step } => Some(step),
            Self::RunStarted { .. }
            | Self::Signal { .. }
            | Self::Answered { .. }
            | Self::CancelRequested { .. }
            | Self::Resumed { .. } => None,
        }
    }
}
