//! The steps of a stored run, derived from its events.

use std::collections::HashMap;
use std::sync::Arc;

use toolpost_core::Timestamp;

use crate::event::FlowEvent;
use crate::journal::ToolErrorText;
use crate::machine::{Command, Machine, Task};
use crate::outcome::StepStatus;
use crate::plan::types::{Block, OnError, Step};
use crate::run::StoredFlow;

/// A step of a stored run, an item of a map, an iteration of a loop, or a handler of errors, with the steps within it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StepReport {
    /// The path, such as `each[3].size`; `each[3]` for an item, `load:error` and `load:undo` for handlers.
    pub path: String,
    /// The tool of a call.
    pub tool: Option<Arc<str>>,
    /// The status. `None` if the step has not ended.
    pub status: Option<StepStatus>,
    /// When the first attempt or the wait began; of a block, when its first step did. `None` if the call is queued.
    pub started: Option<Timestamp>,
    /// When the step ended.
    pub ended: Option<Timestamp>,
    /// The number of attempts that began.
    pub attempts: u32,
    /// The error of the step or of its last failed attempt. A step whose handler succeeded has one, too.
    pub error: Option<ToolErrorText>,
    /// The event that the step waits for, or waited for.
    pub wait: Option<StepWait>,
    /// The end of its wait for a signal or an approval. The time counts also while no process runs the workflow.
    pub deadline: Option<Timestamp>,
    /// The steps within it, in the order in which they began or ended.
    pub steps: Vec<StepReport>,
}

/// The event that a step waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepWait {
    /// A time.
    Until(Timestamp),
    /// A signal with this name.
    Signal(String),
    /// A person's answer to this question.
    Approval(String),
}

impl StepReport {
    /// The last part of the path: an id, `[3]`, `:error` or `:undo`.
    pub fn name(&self) -> &str {
        split(&self.path).1
    }
}

/// A path and its last part. The first one is empty for a step of the plan itself.
fn split(path: &str) -> (&str, &str) {
    let (before, name) = path.split_at(path.rfind(['.', '[', ':']).unwrap_or_default());
    (before, name.strip_prefix('.').unwrap_or(name))
}

/// A report with its place in the plan.
struct ReportRow<'a> {
    report: StepReport,
    /// None for an instance of a block.
    step: Option<&'a Step>,
    /// The block within.
    block: Option<&'a Arc<Block>>,
    inner: Vec<usize>,
}

struct Entries<'a> {
    root: &'a Arc<Block>,
    list: Vec<ReportRow<'a>>,
    places: HashMap<String, usize>,
    /// The steps of the plan itself.
    outer: Vec<usize>,
}

impl StoredFlow {
    /// The steps that began or ended, with their times, as a tree. The ends that are not stored, such as those of blocks
    /// and of skipped steps, follow from the plan and the events.
    pub fn steps(&self) -> Vec<StepReport> {
        let Some((at, FlowEvent::RunStarted { v, .. })) = self.events.first() else { return Vec::new() };
        let root = &self.plan.body;
        let mut all = Entries { root, list: Vec::new(), places: HashMap::new(), outer: Vec::new() };
        let mut machine = Machine::new(&self.plan, self.summary.id, self.input.clone(), *at, *v);
        all.take(&mut machine, *at);
        for (at, event) in self.events.iter().skip(1) {
            let is_applied = machine.apply(event.clone(), *at).is_ok();
            match event {
                FlowEvent::StepStarted { step, attempt } if !Machine::is_limit(step) => {
                    let report = all.report(step);
                    report.started.get_or_insert(*at);
                    report.attempts = report.attempts.max(*attempt);
                }
                FlowEvent::StepFailed { step, error } if is_applied => {
                    all.report(step).error = Some(ToolErrorText::from_error(error));
                }
                _ => {}
            }
            all.take(&mut machine, *at);
        }
        let Entries { list: mut entries, outer, .. } = all;
        outer.into_iter().filter_map(|place| finished(&mut entries, place)).collect()
    }
}

impl Entries<'_> {
    /// Takes what an event made the machine do.
    fn take(&mut self, machine: &mut Machine, at: Timestamp) {
        for change in machine.take_changes() {
            let report = self.report(&change.step);
            report.status = Some(change.status());
            report.ended = Some(at);
            let error = change.result.error.as_ref().map(ToolErrorText::from_error);
            // A handler stands for a step that failed: its error stays.
            let is_handled = report.error.is_some() && error.is_none() && self.has_handler(&change.step);
            if !is_handled {
                self.report(&change.step).error = error;
            }
        }
        for command in machine.take_commands() {
            match command {
                Command::Run(work) if !Machine::is_limit(&work.step) => {
                    let report = self.report(&work.step);
                    match work.task {
                        Task::Call { tool, .. } => report.tool = Some(tool),
                        Task::Wait => {
                            report.started = Some(at);
                            report.wait =
                                Some(StepWait::Until(Timestamp::from_micros(work.not_before * 1_000)));
                        }
                    }
                }
                Command::Await { step, wait, until } => {
                    let report = self.report(&step);
                    report.started = Some(at);
                    report.deadline = until.map(|until| Timestamp::from_micros(until.saturating_mul(1_000)));
                    report.wait = Some(wait);
                }
                _ => {}
            }
        }
    }

    fn has_handler(&self, path: &str) -> bool {
        self.places.contains_key(&format!("{path}:error"))
    }

    fn report(&mut self, path: &str) -> &mut StepReport {
        let place = self.place(path);
        &mut self.list[place].report
    }

    /// The place of a path, with the blocks around it.
    fn place(&mut self, path: &str) -> usize {
        if let Some(place) = self.places.get(path) {
            return *place;
        }
        let (before, name) = split(path);
        let outer = (!before.is_empty()).then(|| self.place(before));
        let around = outer.and_then(|place| self.list.get(place));
        let block = around.map_or(Some(self.root), |around| around.block);
        let own = around.and_then(|around| around.step);
        let (step, block) = match name {
            ":error" => (None, own.and_then(Step::handler)),
            ":undo" => (None, own.and_then(|step| step.undo.as_ref())),
            instance if instance.starts_with('[') => (None, block),
            id => {
                let step = block.and_then(|block| block.steps.get(block.position(id)?));
                (step, step.and_then(Step::body))
            }
        };
        let report = StepReport { path: path.to_owned(), ..StepReport::default() };
        let place = self.list.len();
        self.list.push(ReportRow { report, step, block, inner: Vec::new() });
        self.places.insert(path.to_owned(), place);
        match outer.and_then(|outer| self.list.get_mut(outer)) {
            Some(outer) => outer.inner.push(place),
            None => self.outer.push(place),
        }
        place
    }
}

/// The report of a place with those within it. What its steps have alone, such as the end of an item, is derived.
fn finished(entries: &mut [ReportRow<'_>], place: usize) -> Option<StepReport> {
    let entry = entries.get_mut(place)?;
    let inner = std::mem::take(&mut entry.inner);
    let (step, count) = (entry.step, entry.block.map_or(0, |block| block.steps.len()));
    let is_tolerated = |entries: &[ReportRow<'_>], place: &usize| {
        let step = entries.get(*place).and_then(|entry| entry.step);
        step.is_some_and(|step| matches!(step.on_error, OnError::Continue))
    };
    let failures: Vec<bool> = inner.iter().map(|place| !is_tolerated(entries, place)).collect();
    let steps: Vec<StepReport> = inner.into_iter().filter_map(|place| finished(entries, place)).collect();
    let entry = entries.get_mut(place)?;
    let mut report = std::mem::take(&mut entry.report);
    if report.started.is_none() {
        report.started = steps.iter().filter_map(|step| step.started).min();
    }
    let has_ended = steps.len() == count && steps.iter().all(|step| step.status.is_some());
    if step.is_none() && has_ended {
        let failed = steps
            .iter()
            .zip(failures)
            .find(|(step, counts)| *counts && step.status == Some(StepStatus::Failed))
            .map(|(step, _)| step.error.clone());
        report.status = Some(match &failed {
            Some(_) => StepStatus::Failed,
            None if steps.iter().any(|step| step.status == Some(StepStatus::Cancelled)) => {
                StepStatus::Cancelled
            }
            None => StepStatus::Succeeded,
        });
        report.error = failed.flatten();
        report.ended = steps.iter().filter_map(|step| step.ended).max();
    }
    report.steps = steps;
    Some(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use toolpost_core::{RunId, ToolError};

    use crate::event::VERSION;
    use crate::plan::{Format, Plan};

    /// The reports of a run whose events come one second after another: a line per step.
    fn lines(plan: &str, events: Vec<FlowEvent>) -> Vec<String> {
        fn add(reports: &[StepReport], depth: usize, lines: &mut Vec<String>) {
            for report in reports {
                let second = |at: Option<Timestamp>| {
                    at.map_or("?".to_owned(), |at| (at.as_micros() / 1_000_000).to_string())
                };
                let StepReport { status, attempts, wait, error, .. } = report;
                let status = status.map_or("open", StepStatus::as_str);
                let wait = wait.as_ref().map(|wait| format!(" {wait:?}")).unwrap_or_default();
                let error = error.as_ref().map(|error| format!(" {}", error.message)).unwrap_or_default();
                let (from, to) = (second(report.started), second(report.ended));
                let indent = "  ".repeat(depth);
                lines.push(format!("{indent}{} {status} {from}-{to} {attempts}{wait}{error}", report.name()));
                add(&report.steps, depth + 1, lines);
            }
        }
        let plan = Plan::parse(plan, Format::Yaml).unwrap();
        let hash = plan.hash().to_owned();
        let first = FlowEvent::RunStarted { v: VERSION, plan: plan.source().clone(), hash, input: json!({}) };
        let stamped = std::iter::once(first).chain(events).enumerate();
        let stamped = stamped.map(|(at, event)| (Timestamp::from_micros(at as u64 * 1_000_000), event));
        let run = StoredFlow::from_events(RunId::new(), stamped.collect()).unwrap();
        let mut lines = Vec::new();
        add(&run.steps(), 0, &mut lines);
        lines
    }

    fn started(step: &str, attempt: u32) -> FlowEvent {
        FlowEvent::StepStarted { step: step.to_owned(), attempt }
    }

    fn succeeded(step: &str, output: Value) -> FlowEvent {
        FlowEvent::StepSucceeded { step: step.to_owned(), output, truncated: Vec::new() }
    }

    fn failed(step: &str, message: &str) -> FlowEvent {
        FlowEvent::StepFailed { step: step.to_owned(), error: ToolError::dependency(message) }
    }

    #[test]
    fn ends_that_are_not_stored_follow_from_the_plan() {
        let plan = "steps:
  - { id: no, when: '${{ 1 > 2 }}', tool: x }
  - id: each
    map: [1, 2]
    failure: continue
    on_error: [{ id: note, tool: x }]
    steps:
      - { id: a, tool: x, retry: { max: 1, initial: 1ms } }
      - { id: b, needs: a, tool: x, on_error: continue }
  - { id: bad, tool: x }
  - { id: after, needs: bad, tool: x }
failure: continue
";
        let events = vec![
            started("each[0].a", 1),
            failed("each[0].a", "once"),
            started("each[0].a", 2),
            succeeded("each[0].a", json!(1)),
            started("each[1].a", 1),
            failed("each[0].b", "tolerated"),
            failed("each[1].a", "first"),
            failed("each[1].a", "last"),
            failed("bad", "broken"),
            succeeded("each:error.note", json!(2)),
        ];
        assert_eq!(
            lines(plan, events),
            [
                "no skipped ?-0 0",
                "bad failed ?-9 0 broken",
                "each succeeded 1-10 0",
                "  [0] succeeded 1-6 0",
                "    a succeeded 1-4 2",
                "    b failed ?-6 0 tolerated",
                "  [1] failed 5-8 0 last",
                "    a failed 5-8 1 last",
                "    b blocked ?-8 0",
                "  :error succeeded ?-10 0",
                "    note succeeded ?-10 0",
                "after blocked ?-9 0",
            ]
        );
    }

    #[test]
    fn waits_and_open_steps_have_no_end() {
        let plan = "steps:
  - { id: ok, approve: 'Continue?' }
  - { id: go, signal: start }
  - { id: later, wait: 1h }
  - id: again
    loop: { max: 2 }
    timeout: 1h
    steps: [{ id: call, tool: x }, { id: next, needs: call, tool: x }]
";
        let signal = FlowEvent::Signal { name: "start".to_owned(), value: json!(1) };
        let events = vec![signal, started("again[0].call", 1), succeeded("again[0].call", json!(1))];
        assert_eq!(
            lines(plan, events),
            [
                "ok open 0-? 0 Approval(\"Continue?\")",
                "go succeeded 0-1 0 Signal(\"start\")",
                "later open 0-? 0 Until(Timestamp(3600000000))",
                "again open 2-? 0",
                "  [0] open 2-? 0",
                "    call succeeded 2-3 1",
                "    next open ?-? 0",
            ]
        );
    }
}
