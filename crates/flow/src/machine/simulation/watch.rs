//! Rules of every run, from the plan as data and the view of a driver: order, limits, priorities, no starvation, one end
//! of each step, compensation.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::Value;
use toolpost_core::Priority;

use crate::driver::queue::RISE;
use crate::machine::StepEnd;
use crate::outcome::{RunStatus, StepStatus};

/// The default number of instances of a map at once.
const PARALLEL: u64 = 16;

/// A step with the blocks around it, from outside to inside.
struct Level<'a> {
    step: &'a Value,
    /// The path of its block's instance, with a dot at its end; empty for the plan.
    prefix: String,
    siblings: &'a [Value],
    is_listed: bool,
    /// The limit of its block.
    limit: Option<u64>,
    /// The part of its path within the block, with the number of an item.
    part: String,
}

impl Level<'_> {
    fn path(&self) -> String {
        format!("{}{}", self.prefix, self.step["id"].as_str().unwrap_or_default())
    }

    /// The paths of the steps that it needs.
    fn needs(&self) -> Vec<(String, &Value)> {
        let mut needs: Vec<&Value> = match &self.step["needs"] {
            Value::Array(ids) => {
                self.siblings.iter().filter(|sibling| ids.contains(&sibling["id"])).collect()
            }
            _ => Vec::new(),
        };
        let place = self.siblings.iter().position(|step| step["id"] == self.step["id"]).unwrap_or_default();
        if self.is_listed && place > 0 {
            needs.push(&self.siblings[place - 1]);
        }
        let path = |step: &Value| format!("{}{}", self.prefix, step["id"].as_str().unwrap_or_default());
        needs.into_iter().map(|step| (path(step), step)).collect()
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn levels<'a>(plan: &'a Value, path: &str) -> Vec<Level<'a>> {
    let mut found = Vec::new();
    let mut block = (list(&plan["steps"]), false, plan["max_parallel"].as_u64());
    let mut prefix = String::new();
    for part in path.split('.') {
        let (siblings, is_listed, limit) = block;
        let id = part.split(['[', ':']).next().unwrap_or_default();
        let Some(step) = siblings.iter().find(|step| step["id"] == id) else { panic!("no step {path}") };
        let level = Level { step, prefix: prefix.clone(), siblings, is_listed, limit, part: part.to_owned() };
        found.push(level);
        let group = ["parallel", "sequential", "pipeline", "race", "steps"]
            .into_iter()
            .find(|name| step[name].is_array());
        block = match group {
            _ if part.ends_with(":error") => (list(&step["on_error"]), false, None),
            _ if part.ends_with(":undo") => (list(&step["compensate"]), false, None),
            Some("steps") => (list(&step["steps"]), false, None),
            Some(name) => {
                (list(&step[name]), matches!(name, "sequential" | "pipeline"), step["max_parallel"].as_u64())
            }
            None => (list(&step["flow"]["steps"]), false, step["flow"]["max_parallel"].as_u64()),
        };
        prefix = format!("{prefix}{part}.");
    }
    found
}

/// A call that waits for a slot.
struct Waiting {
    priority: Priority,
    since: u64,
    number: usize,
}

/// The witness of one run.
pub(super) struct Watch<'a> {
    plan: &'a Value,
    seed: u64,
    ended: HashMap<Arc<str>, StepStatus>,
    /// The steps that can be undone, in the order of their ends.
    to_undo: Vec<Arc<str>>,
    undone: Vec<String>,
    /// Whether the run was cancelled before it ended by itself.
    pub(super) is_cancelled: bool,
    waiting: BTreeMap<Arc<str>, Waiting>,
    number: usize,
    /// The number of calls that began before one that waited longer or one of a higher priority.
    pub(super) overtaken: usize,
}

impl<'a> Watch<'a> {
    pub(super) fn new(plan: &'a Value, seed: u64) -> Self {
        Self {
            plan,
            seed,
            ended: HashMap::new(),
            to_undo: Vec::new(),
            undone: Vec::new(),
            is_cancelled: false,
            waiting: BTreeMap::new(),
            number: 0,
            overtaken: 0,
        }
    }

    /// A driver is told to begin an attempt or a wait.
    pub(super) fn begins(&mut self, path: &str) {
        let seed = self.seed;
        if path.ends_with(":timeout") {
            return;
        }
        assert!(!self.ended.contains_key(path), "{seed}: {path} begins after its end");
        for level in levels(self.plan, path) {
            for (need, step) in level.needs() {
                let status = self.ended.get(need.as_str());
                let is_fine = match status {
                    Some(StepStatus::Failed) => step["on_error"] == "continue",
                    Some(StepStatus::Blocked) | None => false,
                    Some(_) => true,
                };
                assert!(is_fine, "{seed}: {path} begins, but {need} is {status:?}");
            }
        }
        match path.split_once(":undo.") {
            Some((step, _)) if self.undone.last().is_none_or(|last| last != step) => {
                self.undone.push(step.to_owned());
            }
            Some(_) => {}
            None => {
                assert!(self.undone.is_empty(), "{seed}: {path} begins during the compensation");
                assert!(!self.is_cancelled, "{seed}: {path} begins after the cancellation");
            }
        }
    }

    /// A step ended.
    pub(super) fn ends(&mut self, end: &StepEnd) {
        let (path, status, seed) = (&end.step, end.status(), self.seed);
        let before = self.ended.insert(Arc::clone(path), status);
        assert!(before.is_none(), "{seed}: {path} is {status:?} after {before:?}");
        let levels = levels(self.plan, path);
        let Some(level) = levels.last() else { return };
        if status == StepStatus::Blocked {
            let is_failed =
                |need: &str| matches!(self.ended.get(need), Some(StepStatus::Failed | StepStatus::Blocked));
            assert!(
                level.needs().iter().any(|(need, _)| is_failed(need)),
                "{seed}: {path} is blocked by none"
            );
        }
        if status == StepStatus::Succeeded && level.step["compensate"].is_array() && !path.contains(":undo.")
        {
            self.to_undo.push(Arc::clone(path));
        }
    }

    /// No block, map or sub-flow has more steps or items at once than it may.
    pub(super) fn check_limits<'b>(&self, open: impl Iterator<Item = &'b Arc<str>>) {
        let mut members: BTreeMap<String, (u64, BTreeSet<String>)> = BTreeMap::new();
        // The limit of a block may be stopped after the block has ended.
        for path in open.filter(|path| !path.ends_with(":timeout")) {
            for level in levels(self.plan, path) {
                let mut add = |block: String, limit: u64, member: String| {
                    members.entry(block).or_insert_with(|| (limit, BTreeSet::new())).1.insert(member);
                };
                let id = level.step["id"].to_string();
                if let Some(limit) = level.limit {
                    add(level.prefix.clone(), limit, id);
                }
                if level.step["map"].is_array() && level.part.contains('[') {
                    let limit = level.step["max_parallel"].as_u64().unwrap_or(PARALLEL);
                    add(level.path(), limit, level.part.clone());
                }
            }
        }
        for (block, (limit, members)) in members {
            assert!(members.len() as u64 <= limit, "{}: `{block}` has {members:?} of {limit}", self.seed);
        }
    }

    /// A call waits for a slot, at a time in milliseconds.
    pub(super) fn queued(&mut self, path: &Arc<str>, priority: Priority, now: u64) {
        self.number += 1;
        self.waiting.insert(Arc::clone(path), Waiting { priority, since: now, number: self.number });
    }

    /// A call got its slot: those that still wait came later, or have a lower priority and have not waited so much longer.
    pub(super) fn started(&mut self, path: &Arc<str>) {
        let seed = self.seed;
        let Some(own) = self.waiting.remove(path) else { panic!("{seed}: {path} was not queued") };
        for (other, waiting) in &self.waiting {
            let lead = RISE * (waiting.priority as u64).abs_diff(own.priority as u64);
            let is_fair = match waiting.priority.cmp(&own.priority) {
                std::cmp::Ordering::Equal => own.number < waiting.number,
                std::cmp::Ordering::Greater => own.since + lead <= waiting.since,
                std::cmp::Ordering::Less => own.since <= waiting.since + lead,
            };
            assert!(
                is_fair,
                "{seed}: {path} ({:?}) goes before {other} ({:?})",
                own.priority, waiting.priority
            );
            self.overtaken += usize::from(own.number > waiting.number || waiting.priority > own.priority);
        }
    }

    /// The run ended: a failed one has undone all that succeeded, the last step first.
    pub(super) fn finished(&self, status: RunStatus) {
        let mut expected: Vec<&str> = self.to_undo.iter().rev().map(|path| &**path).collect();
        if status == RunStatus::Succeeded {
            expected.clear();
        }
        assert_eq!(self.undone, expected, "{}", self.seed);
    }
}
