//! Tests of the ends of steps and runs.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_core::ToolError;

use crate::names::Shared;

/// The status of an ended step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StepStatus {
    /// It succeeded.
    Succeeded,
    /// It failed.
    Failed,
    /// Its condition `when` was false.
    Skipped,
    /// A step that it needs failed.
    Blocked,
    /// It was stopped, or never started, because its block ended.
    Cancelled,
}

impl StepStatus {
    /// The name in expressions and events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Blocked => "blocked",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The end of a step.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StepOutcome {
    /// The status.
    pub status: StepStatus,
    /// The output; null unless the step succeeded.
    pub output: Arc<Value>,
    /// The reason of the failure.
    pub error: Option<ToolError>,
}

/// The result of an ended step.
#[derive(Debug)]
pub(crate) struct StepResult {
    pub(crate) status: StepStatus,
    /// Null unless it succeeded.
    pub(crate) output: Arc<Shared>,
    pub(crate) error: Option<ToolError>,
}

impl StepResult {
    pub(crate) fn new(status: StepStatus, output: Arc<Value>, error: Option<ToolError>) -> Arc<Self> {
        Arc::new(Self { status, output: Shared::new(output), error })
    }
}

/// The status of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunStatus {
    /// It has not ended.
    Running,
    /// It succeeded.
    Succeeded,
    /// It failed.
    Failed,
    /// It was cancelled.
    Cancelled,
}

impl RunStatus {
    /// The name in events and lists.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}
