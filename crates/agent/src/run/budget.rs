//! The limits of a run and its spending.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use toolpost_core::Ctx;

use crate::run_context::RunContext;
use crate::spend::Spent;
use crate::{RunLimits, RunStopReason};

use super::now;

/// Time that a sandbox may end a program early, because its timers have milliseconds.
const TIMER_PRECISION: Duration = Duration::from_millis(10);

/// The usage that counts towards the limits of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Counted {
    pub(super) spent: Spent,
    pub(super) iterations: u32,
    pub(super) tool_calls: u32,
}

/// The limits of a run and what counts towards them.
pub(super) struct Budget {
    limits: RunLimits,
    counted: Counted,
    pub(super) context: Arc<RunContext>,
    /// The deadline of the caller.
    given: Option<Instant>,
    deadline: Option<Instant>,
    /// The end of a program that the deadline ends: calls reserve time for the end of their programs.
    end_of_programs: Option<Instant>,
}

/// The earliest time at which the deadline of a run ends a program.
fn end_of_programs(begun: Instant, deadline: Instant) -> Option<Instant> {
    let time = deadline.saturating_duration_since(begun);
    deadline.checked_sub(Ctx::reserve(time).saturating_add(TIMER_PRECISION))
}

impl Budget {
    pub(super) fn new(
        limits: &RunLimits,
        begun: Instant,
        context: Arc<RunContext>,
        deadline: Option<Instant>,
    ) -> Self {
        let own = limits.time.and_then(|time| begun.checked_add(time));
        let given = deadline;
        let deadline = own.into_iter().chain(given).min();
        Self {
            limits: limits.clone(),
            counted: Counted::default(),
            context,
            given,
            deadline,
            end_of_programs: deadline.and_then(|deadline| end_of_programs(begun, deadline)),
        }
    }

    /// Checks that the limits allow another request to the model.
    pub(super) fn admit(&mut self) -> Result<(), RunStopReason> {
        if self.counted.iterations >= self.limits.iterations {
            return Err(RunStopReason::MaxIterations);
        }
        match self.context.used_up() {
            Some(stop) => Err(stop),
            None => Ok(()),
        }
    }

    /// Counts a request to the model. Returns its number, from 1.
    pub(super) fn begin_iteration(&mut self) -> u32 {
        self.counted.iterations = self.counted.iterations.saturating_add(1);
        self.counted.iterations
    }

    pub(super) fn counted(&self) -> Counted {
        Counted {
            spent: self.context.spent(),
            tool_calls: self.context.tool_calls(),
            iterations: self.counted.iterations,
        }
    }

    /// Resumes the earlier counts and the remaining time.
    pub(super) fn restore(&mut self, counted: &Counted, begun: Instant, elapsed: Duration) {
        self.counted = counted.clone();
        self.context.restore(&counted.spent, counted.tool_calls);
        let own = self.limits.time.and_then(|time| begun.checked_add(time.saturating_sub(elapsed)));
        self.deadline = own.into_iter().chain(self.given).min();
        self.end_of_programs = self.deadline.and_then(|deadline| end_of_programs(begun, deadline));
    }

    /// The earlier of the deadline and the time limit.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Sets the deadline to so much time from now, for a last answer.
    pub(super) fn extend(&mut self, time: Duration) {
        self.deadline = now().checked_add(time);
    }

    pub(super) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now())
    }

    /// Whether the deadline has ended a program that still ran.
    pub(super) fn ends_programs(&self) -> bool {
        self.end_of_programs.is_some_and(|end| end <= now())
    }
}

/// Waits for a deadline; without one, forever.
pub(super) async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
