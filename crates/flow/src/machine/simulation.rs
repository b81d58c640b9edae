//! Random plans with random ends, restarts and cancellations, from a seed: what holds for all of them.

mod watch;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::{Value, json};
use toolpost_core::{RunId, Timestamp, ToolError};

use self::watch::Watch;
use super::{Command, Machine, Task};
use crate::driver::CallQueue;
use crate::event::FlowEvent;
use crate::outcome::RunStatus;
use crate::plan::Plan;
use crate::report::StepWait;

/// Numbers of a seed (`xorshift64*`).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound.max(1)
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// The steps of a block. `budget` bounds all of them together.
fn steps(random: &mut Random, depth: usize, budget: &mut usize) -> Value {
    let count = 1 + random.below(4);
    let mut list = Vec::new();
    for number in 0..count {
        *budget = budget.saturating_sub(1);
        let mut step = json!({ "id": format!("s{number}") });
        let kind = if depth == 0 || *budget == 0 { random.below(4) } else { random.below(12) };
        match kind {
            0..=2 => step["tool"] = "t".into(),
            3 => match random.below(3) {
                0 => step["wait"] = "1s".into(),
                1 => step["signal"] = format!("signal{}", random.below(3)).into(),
                _ => step["approve"] = "Go?".into(),
            },
            4 | 5 => {
                let name = ["parallel", "sequential", "pipeline", "race"][random.below(4)];
                step[name] = steps(random, depth - 1, budget);
                if name == "parallel" && random.chance(30) {
                    step["max_parallel"] = (1 + random.below(2)).into();
                }
                let count = step[name].as_array().map_or(1, Vec::len);
                match random.below(4) {
                    0 if name == "parallel" => step["failure"] = "continue".into(),
                    1 if name == "parallel" => {
                        step["failure"] = json!({ "quorum": 1 + random.below(count) });
                    }
                    _ => {}
                }
            }
            6..=8 => {
                step["map"] = json!(vec![0; random.below(5)]);
                step["max_parallel"] = (1 + random.below(3)).into();
                step["steps"] = steps(random, depth - 1, budget);
                match random.below(3) {
                    0 => step["failure"] = "continue".into(),
                    1 => step["failure"] = json!({ "quorum": 1 + random.below(3) }),
                    _ => {}
                }
            }
            9 | 10 => {
                step["loop"] = json!({ "max": 1 + random.below(3) });
                step["steps"] = steps(random, depth - 1, budget);
            }
            _ => {
                step["flow"] = json!({ "steps": steps(random, depth - 1, budget) });
                if random.chance(30) {
                    step["flow"]["max_parallel"] = (1 + random.below(2)).into();
                }
            }
        }
        if step.get("tool").is_some() && random.chance(60) {
            step["priority"] = ["background", "low", "normal", "high", "critical"][random.below(5)].into();
        }
        let has_limit = ["parallel", "sequential", "pipeline", "race", "flow"];
        if has_limit.iter().any(|kind| step.get(kind).is_some()) && random.chance(30) {
            step["timeout"] = "10s".into();
        }
        if step.get("tool").is_some() && random.chance(30) {
            step["retry"] = json!({ "max": 1 + random.below(2) });
        }
        if number > 0 && random.chance(50) {
            step["needs"] = json!([format!("s{}", random.below(number))]);
        }
        if random.chance(10) {
            step["when"] = random.chance(50).into();
        }
        match random.below(12) {
            0 => step["on_error"] = "continue".into(),
            1 if depth > 0 => step["on_error"] = steps(random, 0, budget),
            _ => {}
        }
        if random.chance(20) {
            step["compensate"] = json!([{ "id": "u", "tool": "t" }]);
        }
        list.push(step);
    }
    list.into()
}

/// The task of a driver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Open {
    /// A call that waits for a slot.
    Queued,
    Call,
    Wait,
    Signal(String),
    Approval,
}

struct Driver<'a> {
    open: BTreeMap<Arc<str>, Open>,
    stopped: BTreeSet<Arc<str>>,
    /// The calls that run at once.
    slots: usize,
    queue: CallQueue<Arc<str>>,
    watch: Watch<'a>,
    ends: usize,
}

impl Driver<'_> {
    /// Does what the machine says at a time in milliseconds.
    fn obey(&mut self, machine: &mut Machine, now: u64, seed: u64) {
        for change in machine.take_changes() {
            self.watch.ends(&change);
        }
        let mut has_begun = false;
        for command in machine.take_commands() {
            match command {
                Command::Run(work) => {
                    has_begun = true;
                    self.watch.begins(&work.step);
                    let open = match work.task {
                        Task::Call { .. } => {
                            self.watch.queued(&work.step, work.priority, now);
                            self.queue.push(Arc::clone(&work.step), work.priority, now);
                            Open::Queued
                        }
                        Task::Wait => Open::Wait,
                    };
                    let before = self.open.insert(Arc::clone(&work.step), open);
                    assert!(before.is_none(), "{seed}: {} runs twice at once", work.step);
                }
                Command::Await { step, wait, .. } => {
                    has_begun = true;
                    self.watch.begins(&step);
                    let open = match wait {
                        StepWait::Signal(name) => Open::Signal(name),
                        _ => Open::Approval,
                    };
                    let before = self.open.insert(Arc::clone(&step), open);
                    assert!(before.is_none(), "{seed}: {step} waits twice at once");
                }
                Command::Answered { step } => _ = self.open.remove(&step),
                Command::Stop { step } => _ = self.stopped.insert(step),
                Command::Items { .. } => {}
                Command::End => self.ends += 1,
            }
        }
        if has_begun {
            self.watch.check_limits(self.open.keys());
        }
        self.start();
    }

    /// Gives free slots to queued calls.
    fn start(&mut self) {
        let running =
            |open: &BTreeMap<Arc<str>, Open>| open.values().filter(|open| **open == Open::Call).count();
        while running(&self.open) < self.slots
            && let Some(step) = self.queue.pop()
        {
            self.watch.started(&step);
            self.open.insert(step, Open::Call);
        }
    }
}

/// Runs one random plan to its end. Returns its status, the number of events, and how often a call overtook another one.
fn simulate(seed: u64) -> (RunStatus, usize, usize) {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut budget = 25;
    let mut source = json!({ "steps": steps(&mut random, 3, &mut budget) });
    if random.chance(20) {
        source["max_parallel"] = (1 + random.below(3)).into();
    }
    let plan =
        Arc::new(Plan::from_value(&source).unwrap_or_else(|error| panic!("{seed}: {error}\n{source}")));
    let run = RunId::new();
    let mut time = 1_000_000_u64;
    let begun = Timestamp::from_micros(time);
    let mut machine = Machine::new(&plan, run, json!({}), begun, FlowEvent::FORMAT);
    let mut driver = Driver {
        open: BTreeMap::new(),
        stopped: BTreeSet::new(),
        slots: 1 + random.below(4),
        queue: CallQueue::default(),
        watch: Watch::new(&source, seed),
        ends: 0,
    };
    driver.obey(&mut machine, time / 1_000, seed);
    let mut events: Vec<(Timestamp, FlowEvent)> = Vec::new();
    let failures = [0, 10, 40][random.below(3)];
    let mut is_cancelled = false;
    while machine.ended().is_none() {
        assert!(events.len() < 5_000, "{seed}: it does not end\n{source}");
        assert!(!driver.open.is_empty(), "{seed}: nothing runs, and it has not ended\n{source}");
        time += 1_000 * (1 + random.below(5_000) as u64);
        let event = if !is_cancelled && random.chance(1) {
            is_cancelled = true;
            FlowEvent::CancelRequested { reason: "by chance".to_owned() }
        } else {
            let active: Vec<_> = driver.open.iter().filter(|(_, open)| **open != Open::Queued).collect();
            let (step, open) = active[random.below(active.len())];
            let (step, open) = (Arc::clone(step), open.clone());
            let is_stopped = driver.stopped.contains(&step);
            let end = |event: FlowEvent, driver: &mut Driver| {
                driver.open.remove(&step);
                driver.stopped.remove(&step);
                event
            };
            match open {
                _ if is_stopped && random.chance(80) => {
                    end(FlowEvent::StepCancelled { step: step.to_string() }, &mut driver)
                }
                Open::Signal(name) if !is_stopped => FlowEvent::Signal { name, value: json!(events.len()) },
                Open::Approval if !is_stopped => {
                    let answer = json!({ "approved": !random.chance(failures) });
                    FlowEvent::Answered { step: step.to_string(), answer }
                }
                Open::Call if random.chance(failures) => {
                    let error = if random.chance(50) {
                        ToolError::dependency("down")
                    } else {
                        ToolError::invalid_input("bad")
                    };
                    end(FlowEvent::StepFailed { step: step.to_string(), error }, &mut driver)
                }
                Open::Signal(_) | Open::Approval => {
                    end(FlowEvent::StepCancelled { step: step.to_string() }, &mut driver)
                }
                Open::Call | Open::Wait | Open::Queued => end(
                    FlowEvent::StepSucceeded {
                        step: step.to_string(),
                        output: json!(events.len()),
                        truncated: Vec::new(),
                    },
                    &mut driver,
                ),
            }
        };
        let at = Timestamp::from_micros(time);
        let cancels = matches!(event, FlowEvent::CancelRequested { .. }) && machine.ending.is_none();
        driver.watch.is_cancelled |= cancels;
        events.push((at, event.clone()));
        machine.apply(event, at).unwrap_or_else(|unexpected| panic!("{seed}: {}\n{source}", unexpected.0));
        driver.obey(&mut machine, time / 1_000, seed);
        if cancels {
            let runs = driver
                .open
                .keys()
                .find(|step| !step.ends_with(":timeout") && !driver.stopped.contains(*step));
            assert!(runs.is_none(), "{seed}: {runs:?} is not stopped");
        }
        if random.chance(5) {
            restart(&plan, run, begun, &events, &machine, &driver, seed);
        }
    }
    assert_eq!(driver.ends, 1, "{seed}");
    // The limit of a block that ended with the run is stopped, and nothing more comes of it.
    driver.open.retain(|step, _| !(step.ends_with(":timeout") && driver.stopped.contains(step)));
    assert!(driver.open.is_empty(), "{seed}: it ended, and {:?} runs\n{source}", driver.open);
    let ended = machine.ended().unwrap();
    // A request while the run undoes what it did changes nothing.
    assert!(is_cancelled || ended.status != RunStatus::Cancelled, "{seed}");
    assert!(!is_cancelled || ended.status != RunStatus::Succeeded, "{seed}");
    assert_eq!(ended.error.is_none(), ended.status == RunStatus::Succeeded, "{seed}");
    driver.watch.finished(ended.status);
    (ended.status, events.len(), driver.watch.overtaken)
}

/// A machine of the same events works on the same steps.
fn restart(
    plan: &Arc<Plan>,
    run: RunId,
    begun: Timestamp,
    events: &[(Timestamp, FlowEvent)],
    machine: &Machine,
    driver: &Driver<'_>,
    seed: u64,
) {
    let mut again = Machine::new(plan, run, json!({}), begun, FlowEvent::FORMAT);
    for (at, event) in events {
        again.apply(event.clone(), *at).unwrap();
    }
    let mut working: Vec<_> = again.working.keys().cloned().collect();
    working.sort();
    let open: Vec<_> = driver.open.keys().cloned().collect();
    assert_eq!(working, open, "{seed}");
    let status = |machine: &Machine| machine.ended().map(|ended| (ended.status, Value::clone(&ended.output)));
    assert_eq!(status(&again), status(machine), "{seed}");
}

#[test]
fn random_plans_end_and_keep_their_order_and_limits() {
    const RUNS: u64 = 10_000;
    const THREADS: u64 = 4;
    let part = |first: u64| {
        let mut statuses: HashMap<&str, usize> = HashMap::new();
        let (mut events, mut overtaken) = (0, 0);
        for seed in (first..=RUNS).step_by(THREADS as usize) {
            let (status, count, others) = simulate(seed);
            *statuses.entry(status.as_str()).or_default() += 1;
            events += count;
            overtaken += others;
        }
        (statuses, events, overtaken)
    };
    let mut statuses: HashMap<&str, usize> = HashMap::new();
    let (mut events, mut overtaken) = (0, 0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=THREADS).map(|first| scope.spawn(move || part(first))).collect();
        for thread in threads {
            let (counts, more, others) = thread.join().unwrap();
            for (status, count) in counts {
                *statuses.entry(status).or_default() += count;
            }
            events += more;
            overtaken += others;
        }
    });
    // Otherwise the plans show little.
    for status in ["succeeded", "failed", "cancelled"] {
        assert!(statuses.get(status).is_some_and(|count| *count > 300), "{statuses:?}");
    }
    assert!(events > 50_000, "{events}");
    assert!(overtaken > 1_000, "{overtaken}");
}
