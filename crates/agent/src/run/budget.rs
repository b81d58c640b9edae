//! How far a run may go, and what it has spent.

use std::time::{Duration, Instant};

use toolpost_core::Usage;

use crate::{Limits, StopReason};

use super::now;

/// Tokens, and what they cost.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spent {
    pub(crate) usage: Usage,
    /// In US dollars; `None` once a part of it is unknown.
    pub(crate) cost_usd: Option<f64>,
}

impl Default for Spent {
    fn default() -> Self {
        Self { usage: Usage::default(), cost_usd: Some(0.0) }
    }
}

impl Spent {
    pub(crate) fn add(&mut self, other: &Self) {
        self.usage.add(&other.usage);
        self.cost_usd = self.cost_usd.zip(other.cost_usd).map(|(ours, theirs)| ours + theirs);
    }
}

/// The limits of a run and what counts towards them.
pub(super) struct Budget {
    limits: Limits,
    spent: Spent,
    iterations: u32,
    tool_calls: u32,
    deadline: Option<Instant>,
}

impl Budget {
    pub(super) fn new(limits: &Limits, begun: Instant) -> Self {
        Self {
            limits: limits.clone(),
            spent: Spent::default(),
            iterations: 0,
            tool_calls: 0,
            deadline: limits.time.and_then(|time| begun.checked_add(time)),
        }
    }

    /// Counts one more question to the model, unless there have been as many as may be.
    pub(super) fn admit(&mut self) -> Result<(), StopReason> {
        if self.iterations >= self.limits.iterations {
            return Err(StopReason::MaxIterations);
        }
        match self.used_up() {
            Some(stop) => Err(stop),
            None => Ok(()),
        }
    }

    /// Counts a question to the model, and gives its number, from 1.
    pub(super) fn begin_iteration(&mut self) -> u32 {
        self.iterations += 1;
        self.iterations
    }

    /// Counts what a model has consumed.
    pub(super) fn spend(&mut self, spent: &Spent) {
        self.spent.add(spent);
    }

    /// How many of so many calls may be made.
    pub(super) fn allowed_calls(&self, wanted: usize) -> usize {
        match self.limits.tool_calls {
            Some(limit) => (limit.saturating_sub(self.tool_calls) as usize).min(wanted),
            None => wanted,
        }
    }

    /// Counts calls that were made.
    pub(super) fn count_calls(&mut self, made: usize) {
        self.tool_calls = self.tool_calls.saturating_add(u32::try_from(made).unwrap_or(u32::MAX));
    }

    /// Which limit of tokens or money is reached, if one is.
    pub(super) fn used_up(&self) -> Option<StopReason> {
        if self.limits.tokens.is_some_and(|limit| self.spent.usage.total_tokens() >= limit) {
            return Some(StopReason::MaxTokens);
        }
        match (self.limits.cost_usd, self.spent.cost_usd) {
            (Some(limit), Some(spent)) if spent >= limit => Some(StopReason::MaxCost),
            // What nobody has counted could be anything.
            (Some(_), None) => Some(StopReason::UnknownCost),
            _ => None,
        }
    }

    /// When the run must be over.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Gives so much time from now, for a last answer.
    pub(super) fn extend(&mut self, time: Duration) {
        if self.deadline.is_some() {
            self.deadline = now().checked_add(time);
        }
    }

    pub(super) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now())
    }

    pub(super) fn into_spent(self) -> Spent {
        self.spent
    }
}

/// Waits until then; for ever without a then.
pub(super) async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
