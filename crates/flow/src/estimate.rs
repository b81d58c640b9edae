//! Estimates of a plan from its past runs.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use toolpost_core::{Timestamp, ToolError};

use crate::event::FlowEvent;
use crate::journal::{FlowSummary, Stamped};
use crate::outcome::RunStatus;
use crate::plan::Plan;
use crate::run::Flows;

/// The number of stored runs of the plan's name that are examined.
const MAX_LISTED: usize = 500;
/// The maximum number of runs of an estimate.
const MAX_RUNS: usize = 50;
/// The maximum number of events for the times of steps. Beyond, the older runs give their own time alone.
const MAX_EVENTS: u64 = 100_000;

/// Figures from past runs of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Estimate {
    /// The runs that succeeded or failed, at most the latest 50.
    pub runs: usize,
    /// The runs that failed.
    pub failed: usize,
    /// Whether the runs were those of the very plan, and not of others with its name.
    pub is_same_plan: bool,
    /// The median time of the runs that succeeded, with their waits. `None` if all failed.
    pub p50: Option<Duration>,
    /// The time that nine of ten runs that succeeded did not exceed. `None` if all failed.
    pub p90: Option<Duration>,
    /// The calls by the path of their step without items and iterations, such as `each.size`.
    pub steps: BTreeMap<String, StepEstimate>,
}

/// Figures of a step that calls a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepEstimate {
    /// The median time from the first attempt to the success.
    pub p50: Duration,
    /// The runs in which the step succeeded.
    pub runs: usize,
}

impl Flows {
    /// Figures from the stored runs of a plan, of the same content if there are any, else of the same name. `None` if no
    /// such run has ended.
    ///
    /// Only the latest 500 such runs count, and at most 50 of them give times.
    ///
    /// # Errors
    /// `PRECONDITION` without a store, and errors of the store.
    pub async fn estimate(&self, plan: &Plan) -> Result<Option<Estimate>, ToolError> {
        let has_ended = |run: &FlowSummary| matches!(run.status, RunStatus::Succeeded | RunStatus::Failed);
        let mut runs = self.list(|run| run.name == plan.name() && has_ended(run), MAX_LISTED).await?;
        let is_same_plan = runs.iter().any(|run| run.hash == plan.hash());
        runs.retain(|run| !is_same_plan || run.hash == plan.hash());
        runs.truncate(MAX_RUNS);
        if runs.is_empty() {
            return Ok(None);
        }
        let has_succeeded = |run: &&FlowSummary| run.status == RunStatus::Succeeded;
        let mut times: Vec<Duration> =
            runs.iter().filter(has_succeeded).map(|run| between(run.started, run.updated)).collect();
        times.sort_unstable();
        let mut steps: HashMap<String, (Vec<Duration>, usize)> = HashMap::new();
        let mut events = 0;
        for run in &runs {
            events += run.events;
            if events > MAX_EVENTS {
                break;
            }
            for (step, times) in step_times(&self.events(run.id).await?) {
                let (all, runs) = steps.entry(step).or_default();
                all.extend(times);
                *runs += 1;
            }
        }
        let steps = steps.into_iter().filter_map(|(step, (mut times, runs))| {
            times.sort_unstable();
            Some((step, StepEstimate { p50: percentile(&times, 50)?, runs }))
        });
        Ok(Some(Estimate {
            runs: runs.len(),
            failed: runs.len() - times.len(),
            is_same_plan,
            p50: percentile(&times, 50),
            p90: percentile(&times, 90),
            steps: steps.collect(),
        }))
    }
}

/// The times of the calls that succeeded, by the step in the plan.
fn step_times(events: &[Stamped]) -> HashMap<String, Vec<Duration>> {
    let mut started: HashMap<&str, Timestamp> = HashMap::new();
    let mut times: HashMap<String, Vec<Duration>> = HashMap::new();
    for (at, event) in events {
        match event {
            FlowEvent::StepStarted { step, .. } => _ = started.entry(step).or_insert(*at),
            FlowEvent::StepSucceeded { step, .. } => {
                if let Some(from) = started.get(step.as_str()) {
                    times.entry(in_plan(step)).or_default().push(between(*from, *at));
                }
            }
            _ => {}
        }
    }
    times
}

/// A path without items and iterations.
fn in_plan(path: &str) -> String {
    let mut parts = path.split('[');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |path, part| path + part.split_once(']').map_or("", |(_, rest)| rest))
}

fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::from_micros(to.as_micros().saturating_sub(from.as_micros()))
}

/// The nearest rank: so many percent of the sorted times do not exceed it.
fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    sorted.get((sorted.len() * percent).div_ceil(100).checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let times = |count: u64| (1..=count).map(Duration::from_secs).collect::<Vec<_>>();
        for (count, percent, expected) in
            [(1, 50, 1), (1, 90, 1), (2, 50, 1), (3, 50, 2), (10, 90, 9), (11, 90, 10)]
        {
            let found = percentile(&times(count), percent);
            assert_eq!(found, Some(Duration::from_secs(expected)), "p{percent} of {count}");
        }
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn paths_lose_their_items() {
        for (path, expected) in
            [("a", "a"), ("each[12].x", "each.x"), ("a[0].b[1].c:error.d", "a.b.c:error.d")]
        {
            assert_eq!(in_plan(path), expected);
        }
    }
}
