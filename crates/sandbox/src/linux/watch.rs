//! Polls the limits that the kernel counts but does not enforce, and those without a cgroup on this host.

use std::time::{Duration, Instant};

use super::files::Measured;
use super::supervise::{Ended, ProgramProcess};
use super::{files, tree};
use crate::{Level, Limits};

/// The interval for processor time.
const PROCESSOR: Duration = Duration::from_millis(25);
/// The interval for cgroup counters.
const COUNTERS: Duration = Duration::from_millis(100);
/// The interval for a workspace without a kernel limit, longer if measuring takes more than a fifth of it.
const DIRECTORY: Duration = Duration::from_millis(200);
/// The interval for memory without a cgroup, longer if measuring takes more than a tenth of it.
const MEMORY: Duration = Duration::from_millis(50);
/// Less processor time than this between two checks counts as idle.
pub(super) const NOTHING: u64 = 1000;

/// A periodic check.
#[derive(Debug)]
struct Look {
    every: Duration,
    next: Instant,
}

impl Look {
    fn new(every: Duration, now: Instant) -> Self {
        Self { every, next: now + every }
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let due = now >= self.next;
        if due {
            self.next = now + self.every;
        }
        due
    }
}

/// The periodic checks of one run.
pub(super) struct Watch<'a> {
    limits: &'a Limits,
    /// Workspaces without a kernel limit.
    measured: &'a [Measured<'a>],
    processor: Option<Look>,
    idle: Option<Look>,
    counters: Option<Look>,
    directory: Option<Look>,
    memory: Option<Look>,
    /// Whether the run has its own network namespace.
    own_network: bool,
    /// Whether a denied process ends the run.
    processes_end: bool,
    active: Instant,
    output: u64,
    micros: u64,
}

impl<'a> Watch<'a> {
    pub(super) fn new(
        limits: &'a Limits,
        level: Level,
        running: &ProgramProcess,
        measured: &'a [Measured<'a>],
    ) -> Self {
        let now = Instant::now();
        let look = |wanted: bool, every: Duration| wanted.then(|| Look::new(every, now));
        let every_idle =
            limits.idle.map_or(PROCESSOR, |idle| (idle / 8).clamp(PROCESSOR / 2, Duration::from_secs(1)));
        Self {
            limits,
            measured,
            processor: look(limits.cpu.is_some(), PROCESSOR),
            idle: look(limits.idle.is_some(), every_idle),
            counters: look(
                level >= Level::Strict,
                if level == Level::Maximum { PROCESSOR } else { COUNTERS },
            ),
            directory: look(!measured.is_empty(), DIRECTORY),
            memory: look(level != Level::Unconfined && !running.group.limits_memory(), MEMORY),
            own_network: running.own_namespaces && level.is_boundary(),
            processes_end: level == Level::Maximum,
            active: now,
            output: 0,
            micros: 0,
        }
    }

    /// The time until the next check.
    pub(super) fn rest(&self, now: Instant) -> Option<Duration> {
        [&self.processor, &self.idle, &self.counters, &self.directory, &self.memory]
            .into_iter()
            .flatten()
            .map(|look| look.next.saturating_duration_since(now))
            .min()
    }

    /// Performs the due checks. `output` is the number of bytes printed so far.
    pub(super) fn look(&mut self, now: Instant, running: &ProgramProcess, output: u64) -> Option<Ended> {
        let is_due = |look: &mut Option<Look>| look.as_mut().is_some_and(|look| look.is_due(now));
        let (processor, idle) = (is_due(&mut self.processor), is_due(&mut self.idle));
        if processor || idle {
            let micros = processor_micros(running);
            if self.limits.cpu.is_some_and(|limit| Duration::from_micros(micros) >= limit) {
                return Some(Ended::Cpu);
            }
            if idle && self.is_idle(now, micros, output) {
                return Some(Ended::Idle);
            }
        }
        if is_due(&mut self.counters) {
            if running.group.memory_kills() > 0 {
                return Some(Ended::Memory);
            }
            if self.processes_end && running.group.refused_processes() > 0 {
                return Some(Ended::Processes);
            }
        }
        if is_due(&mut self.directory) {
            let begin = Instant::now();
            let deleted = tree::deleted_bytes(running.child.pid, self.measured);
            if let Some(over) = files::over(self.measured, self.limits, deleted) {
                return Some(if over == files::Over::Bytes { Ended::Disk } else { Ended::Inodes });
            }
            if let Some(look) = &mut self.directory {
                look.every = DIRECTORY.max(begin.elapsed() * 5);
            }
        }
        if is_due(&mut self.memory) {
            let memory = tree::memory(running.child.pid, self.own_network);
            if let Some(look) = &mut self.memory {
                look.every = MEMORY.max(now.elapsed() * 10);
            }
            if memory > self.limits.memory {
                return Some(Ended::Memory);
            }
        }
        None
    }

    /// Whether the run was idle for as long as the limit.
    fn is_idle(&mut self, now: Instant, micros: u64, output: u64) -> bool {
        if output != self.output || micros.saturating_sub(self.micros) >= NOTHING {
            self.active = now;
        }
        (self.output, self.micros) = (output, micros);
        self.limits.idle.is_some_and(|limit| now.duration_since(self.active) >= limit)
    }
}

/// The processor time of the run in microseconds.
pub(super) fn processor_micros(running: &ProgramProcess) -> u64 {
    let micros =
        running.group.processor_micros().unwrap_or_else(|| tree::processor_micros(running.child.pid));
    micros.saturating_sub(running.child.spent())
}
