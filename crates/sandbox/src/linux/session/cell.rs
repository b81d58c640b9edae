//! Runs one cell: sends its code, reads its output and answer, and enforces its limits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::Signal;

use super::super::attend;
use super::super::capture::Capture;
use super::super::files::Over;
use super::super::value::{ResultLine, value};
use super::super::watch::NOTHING;
use super::super::{files, tree};
use super::frame::{self, Answer, End, Nonce};
use super::member::{Member, nonce};
use super::shared_sandbox::{Packet, SharedSandbox, buffer, receive};
use crate::session::CellLimits;
use crate::{
    Cancel, Changes, Interruption, Layer, Limits, Outcome, Reached, Report, ResourceUsage, SandboxEvent,
    Verdict,
};
use toolpost_egress::EgressLog;

/// The interval between checks of clock and counters.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// The maximum read of each stream after a cell's end; more than a pipe holds.
const MAX_LAST_OUTPUT: usize = 1 << 20;
/// The time to wait for the sandbox's end report after its first process died.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// A signal this soon after the start may reach the interpreter before the cell; it is repeated. An interrupt
/// packet without an answer for this long is followed by a signal.
const EARLY_INTERRUPT: Duration = Duration::from_millis(50);

/// Requests to the running cell from other threads.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// Whether the caller interrupted the cell.
    pub(crate) interrupt: AtomicBool,
}

/// The reason why the host stops a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    Cancelled,
    Wall,
    Cpu,
    Idle,
    Output,
    Flood,
}

/// A stop in progress: the interrupts and, after the grace time, the kill.
struct Stop {
    reason: Reason,
    since: Instant,
    interrupts: u32,
}

/// A running cell.
struct Cell<'a> {
    member: &'a mut Member,
    limits: &'a CellLimits,
    calls: &'a Calls,
    cancel: &'a Cancel,
    on_event: &'a mut dyn FnMut(SandboxEvent<'_>),
    since: Instant,
    cpu_before: u64,
    system_before: u64,
    egress_before: Option<EgressLog>,
    /// The last activity: its time, and the output and processor time then.
    active: (Instant, u64, u64),
    stdout: Capture,
    stderr: Capture,
    result_line: ResultLine,
    nonce: Nonce,
    answer: Answer,
    packets: std::collections::VecDeque<Vec<u8>>,
    buffer: Vec<u8>,
    stop: Option<Stop>,
    /// When the caller's interrupt was sent, and whether it was repeated.
    interrupted: Option<(Instant, bool)>,
    /// When an interrupt packet or the signal after it was sent.
    unanswered: Option<Instant>,
    is_dead: bool,
    was_killed: bool,
}

fn processor_micros(shared: &SharedSandbox) -> u64 {
    shared.group.processor_micros().unwrap_or_else(|| tree::processor_micros(shared.pid))
}

/// The processor time spent in the kernel.
fn system_micros(shared: &SharedSandbox) -> u64 {
    shared.group.system_micros().unwrap_or_else(|| tree::system_micros(shared.pid))
}

/// Discards the content of a pipe and returns its size.
fn discard(stream: &OwnedFd, buffer: &mut [u8]) -> usize {
    let mut total = 0;
    while total < MAX_LAST_OUTPUT
        && let Ok(size) = rustix::io::read(stream, &mut *buffer)
        && size > 0
    {
        total += size;
    }
    total
}

/// Runs a cell. The second value is the reason if the interpreter ended.
pub(super) fn run(
    member: &mut Member,
    number: u32,
    code: &str,
    limits: &CellLimits,
    calls: &Calls,
    cancel: &Cancel,
    on_event: &mut dyn FnMut(SandboxEvent<'_>),
) -> (Outcome, Option<String>) {
    let since = Instant::now();
    let mut report = member.shared.report.clone();
    let mut buffer = buffer();
    let stale = discard(&member.stdout, &mut buffer) + discard(&member.stderr, &mut buffer);
    if stale > 0 {
        report.notes.push(format!("{stale} bytes of output between the cells were discarded"));
    }
    member.refresh();
    // Discard packets that arrived between the cells.
    for _ in 0..frame::MAX_STRAY {
        if !matches!(receive(&member.socket, &mut buffer), Packet::From(..)) {
            break;
        }
    }
    let Ok(nonce) = nonce() else {
        report.notes.push("the host's random number generator failed".into());
        return (Outcome::new(Verdict::Cancelled, report), None);
    };
    let mut cell = Cell {
        limits,
        calls,
        cancel,
        on_event,
        since,
        cpu_before: processor_micros(&member.shared),
        system_before: system_micros(&member.shared),
        egress_before: member.shared.egress(),
        active: (since, 0, 0),
        stdout: Capture::new(limits.stdout),
        stderr: Capture::new(limits.stderr),
        result_line: ResultLine::new(limits.value_bytes),
        nonce,
        answer: Answer::new(nonce, limits.value_bytes),
        packets: frame::cell(&nonce, number, code.as_bytes()).into(),
        buffer,
        stop: None,
        interrupted: None,
        unanswered: None,
        is_dead: false,
        was_killed: false,
        member,
    };
    while !cell.is_over() {
        cell.step();
    }
    cell.last_output();
    cell.finish(report)
}

impl Cell<'_> {
    fn is_over(&self) -> bool {
        self.answer.end().is_some() || self.is_dead
    }

    /// Checks the clock and counters, waits, and reads what has arrived.
    fn step(&mut self) {
        self.watch();
        let now = Instant::now();
        let most = self
            .limits
            .wall
            .saturating_sub(now.duration_since(self.since))
            .clamp(Duration::from_millis(1), POLL_INTERVAL);
        let timeout = Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() };
        let mut control = PollFlags::IN;
        if !self.packets.is_empty() {
            control |= PollFlags::OUT;
        }
        let mut waiting = vec![
            PollFd::new(&self.member.socket, control),
            PollFd::new(&*self.member.pidfd, PollFlags::IN),
            PollFd::new(&self.member.stdout, PollFlags::IN),
            PollFd::new(&self.member.stderr, PollFlags::IN),
        ];
        let cancel = self.cancel.flag.descriptor().filter(|_| self.stop.is_none());
        waiting.extend(cancel.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)));
        if poll(&mut waiting, Some(&timeout)).is_err() {
            return;
        }
        let came: Vec<PollFlags> = waiting.iter().map(PollFd::revents).collect();
        drop(waiting);
        let has =
            |place: usize, flags: PollFlags| came.get(place).is_some_and(|found| found.intersects(flags));
        let readable = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        if has(2, readable) {
            self.output(false);
        }
        if has(3, readable) {
            self.output(true);
        }
        if has(0, PollFlags::OUT) {
            self.send();
        }
        if has(0, readable) {
            self.answers();
        }
        // Last: packets before the end still count.
        if has(1, readable) {
            self.answers();
            self.is_dead = true;
        }
    }

    /// Stops the cell if it reached a limit.
    fn watch(&mut self) {
        let now = Instant::now();
        if self.stop.is_none() {
            let output = self.stdout.total() + self.stderr.total();
            let reason = if self.cancel.is_cancelled() {
                Some(Reason::Cancelled)
            } else if now.duration_since(self.since) >= self.limits.wall {
                Some(Reason::Wall)
            } else if output > self.limits.output_total {
                Some(Reason::Output)
            } else if self.answer.is_flooded() {
                Some(Reason::Flood)
            } else if self.limits.cpu.is_some() || self.limits.idle.is_some() {
                let used = processor_micros(&self.member.shared).saturating_sub(self.cpu_before);
                self.over(now, output, used)
            } else {
                None
            };
            self.stop = reason.map(|reason| Stop { reason, since: now, interrupts: 0 });
        }
        if let Some(stop) = &mut self.stop {
            let passed = now.duration_since(stop.since);
            let due = if passed >= self.limits.grace / 2 { 2 } else { 1 };
            // A flooding interpreter gets no grace time.
            if stop.reason == Reason::Flood || passed >= self.limits.grace {
                self.was_killed = true;
                self.member.kill();
            } else if stop.interrupts < due {
                stop.interrupts = due;
                self.interrupt(now);
            }
        }
        let is_requested = self.calls.interrupt.load(Ordering::SeqCst);
        match &mut self.interrupted {
            None if is_requested => {
                self.interrupted = Some((now, false));
                // The caller's thread has already sent a signal to an interpreter without packets.
                if self.member.reads_interrupts() {
                    self.interrupt(now);
                }
            }
            Some((at, again)) if !*again && now.duration_since(*at) >= EARLY_INTERRUPT => {
                *again = true;
                if at.duration_since(self.since) < EARLY_INTERRUPT && !self.member.reads_interrupts() {
                    self.member.signal(Signal::INT);
                }
            }
            _ => {}
        }
        if self.unanswered.is_some_and(|at| now.duration_since(at) >= EARLY_INTERRUPT) {
            self.unanswered = Some(now);
            self.member.signal(Signal::INT);
        }
    }

    /// Interrupts the cell: by a packet if its interpreter reads packets during a cell, else by a signal.
    fn interrupt(&mut self, now: Instant) {
        if !self.member.reads_interrupts() {
            self.member.signal(Signal::INT);
        } else if self.unanswered.is_none() {
            self.unanswered = Some(now);
            self.packets.push_back(frame::encode(frame::request::INTERRUPT, &self.nonce, &[]));
        }
    }

    /// Returns which processor-time or idle limit is reached.
    fn over(&mut self, now: Instant, output: u64, used: u64) -> Option<Reason> {
        if self.limits.cpu.is_some_and(|limit| Duration::from_micros(used) >= limit) {
            return Some(Reason::Cpu);
        }
        let (since, output_then, used_then) = self.active;
        if output != output_then || used.saturating_sub(used_then) >= NOTHING {
            self.active = (now, output, used);
            return None;
        }
        self.limits.idle.filter(|limit| now.duration_since(since) >= *limit).map(|_| Reason::Idle)
    }

    fn send(&mut self) {
        while let Some(packet) = self.packets.front() {
            match rustix::net::send(&self.member.socket, packet, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(_) => {
                    self.packets.pop_front();
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => return,
                // The interpreter closed its end, or is about to be found dead.
                Err(_) => self.packets.clear(),
            }
        }
    }

    /// Reads packets, a few at a time, so that the clock is checked in between.
    fn answers(&mut self) {
        for _ in 0..64 {
            match receive(&self.member.socket, &mut self.buffer) {
                Packet::From(size, sender) => {
                    let packet = self.buffer.get(..size).unwrap_or_default();
                    self.answer.take(packet, sender == self.member.pid);
                }
                Packet::Nothing => return,
                Packet::End => {
                    // The far end is closed: the interpreter can never answer.
                    if !self.is_dead && self.answer.end().is_none() {
                        self.was_killed = self.stop.is_some();
                        self.member.kill();
                    }
                    return;
                }
            }
        }
    }

    /// Reads output and returns its size.
    fn output(&mut self, is_error: bool) -> usize {
        let stream = if is_error { &self.member.stderr } else { &self.member.stdout };
        let size = rustix::io::read(stream, &mut *self.buffer).unwrap_or(0);
        let bytes = self.buffer.get(..size).unwrap_or_default();
        if bytes.is_empty() {
            return 0;
        }
        if is_error {
            self.stderr.push(bytes);
            (self.on_event)(SandboxEvent::Stderr(bytes));
        } else {
            self.stdout.push(bytes);
            self.result_line.push(bytes);
            (self.on_event)(SandboxEvent::Stdout(bytes));
        }
        size
    }

    /// Reads what the cell wrote before its end.
    fn last_output(&mut self) {
        for is_error in [false, true] {
            let mut total = 0;
            while total < MAX_LAST_OUTPUT {
                match self.output(is_error) {
                    0 => break,
                    size => total += size,
                }
            }
        }
    }

    fn finish(self, mut report: Report) -> (Outcome, Option<String>) {
        let wall = self.since.elapsed();
        let end = self.answer.end();
        let shared = std::sync::Arc::clone(&self.member.shared);
        let termination = if self.is_dead && end.is_none() {
            // The zygote may have died too: then the whole sandbox is dead.
            shared.termination_within(Duration::from_millis(if self.was_killed { 0 } else { 20 })).or_else(
                || {
                    // The thread ends the sandbox and reads its last output before it reports the reason.
                    (!self.was_killed && shared.is_dying())
                        .then(|| shared.termination_within(END_TIMEOUT))
                        .flatten()
                },
            )
        } else {
            None
        };
        let used = processor_micros(&shared).saturating_sub(self.cpu_before);
        let system = system_micros(&shared).saturating_sub(self.system_before).min(used);
        let now = match termination {
            Some(termination) => (termination.memory_kills, termination.refused),
            None => (shared.group.memory_kills(), shared.group.refused_processes()),
        };
        let (killed, refused) = (now.0 > self.member.counted.0, now.1 > self.member.counted.1);
        self.member.counted = now;
        let directory = self.member.workspace().map(std::sync::Arc::clone);
        let full = directory
            .as_ref()
            .filter(|_| shared.report.has(Layer::WorkspaceQuota))
            .and_then(|directory| attend::full(&directory.descriptor));
        let by_host = termination.and_then(|termination| termination.verdict.clone());
        for (reached, limit) in [
            (killed || matches!(by_host, Some(Verdict::Memory { .. })), Reached::Memory),
            (refused, Reached::Processes),
            (full == Some(Over::Bytes) || matches!(by_host, Some(Verdict::Disk { .. })), Reached::Disk),
            (full == Some(Over::Inodes) || matches!(by_host, Some(Verdict::Inodes { .. })), Reached::Inodes),
        ] {
            if reached {
                report.reached.push(limit);
            }
        }
        let facts = Facts { killed, refused, full, by_host, limits: &shared.limits };
        let (verdict, exit_code) = self.verdict(end, &facts, &mut report);
        let reason = self.why_gone(end);
        let Self { answer, stdout, stderr, result_line, .. } = self;
        let own = answer.finish(&mut report.notes);
        let line = result_line.finish();
        let value = value(&own, line.as_ref(), || None, None, &mut report);
        if let Some(log) = shared.egress_at_end() {
            report.record_egress_log(log.since(self.egress_before.as_ref()));
        }
        let (stdout, stderr) = (stdout.finish(), stderr.finish());
        for (captured, limit) in [(&stdout, Reached::Stdout), (&stderr, Reached::Stderr)] {
            if captured.dropped > 0 {
                report.reached.push(limit);
            }
        }
        let mut changes = Changes::default();
        let mut artifacts = Vec::new();
        if let Some(directory) = &directory {
            let after = self.member.list();
            changes = files::compare(&self.member.before, &after);
            if let Some(reason) = after.left_out {
                report.reached.push(Reached::Changes);
                report.notes.push(format!("some files are not listed: {reason}"));
            }
            let limits = Limits {
                artifacts: self.limits.artifacts,
                artifact_bytes: self.limits.artifact_bytes,
                ..shared.limits.clone()
            };
            artifacts = files::collect_in(directory, &changes, &after, &limits, &mut report);
            self.member.before = after;
        }
        let mut applied = None;
        let mut layer = shared.layer.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(layer) = layer.as_mut() {
            match layer.apply() {
                Ok(done) => applied = done,
                Err(error) => report.notes.push(format!("applying the cell's changes failed: {error}")),
            }
        }
        drop(layer);
        let usage = ResourceUsage {
            wall,
            user: Duration::from_micros(used - system),
            system: Duration::from_micros(system),
            largest_process: 0,
            peak_memory: shared.group.peak_memory(),
        };
        let outcome = Outcome {
            exit_code,
            stdout,
            stderr,
            value_printed: value.as_ref().is_some_and(|found| found.is_printed),
            value: value.map(|found| found.value),
            artifacts,
            changes,
            applied,
            usage,
            ..Outcome::new(verdict, report)
        };
        (outcome, reason)
    }

    /// The reason why the interpreter ended, if it did.
    fn why_gone(&self, end: Option<End>) -> Option<String> {
        if end.is_some() && !self.was_killed {
            return None;
        }
        Some(match self.stop.as_ref().map(|stop| stop.reason) {
            Some(Reason::Wall) => "a cell exceeded its wall time and ignored the interrupt".into(),
            Some(Reason::Cpu) => "a cell exceeded its processor time and ignored the interrupt".into(),
            Some(Reason::Idle) => "a cell was idle and ignored the interrupt".into(),
            Some(Reason::Output) => "a cell exceeded its output limit and ignored the interrupt".into(),
            Some(Reason::Cancelled) => "a cell was cancelled and ignored the interrupt".into(),
            Some(Reason::Flood) => "a cell flooded the control descriptor".into(),
            None => self.member.ended().unwrap_or_else(|| "its interpreter ended".into()),
        })
    }

    fn verdict(&self, end: Option<End>, facts: &Facts<'_>, report: &mut Report) -> (Verdict, Option<i32>) {
        if let Some(stop) = &self.stop {
            return (self.stopped(stop.reason, end, report), None);
        }
        match end {
            Some(End::Done | End::Exited(0)) => (Verdict::Ok, Some(0)),
            Some(End::Exited(status)) => {
                (facts.or(Verdict::Exit { code: status.into() }), Some(status.into()))
            }
            Some(End::Interrupted) if self.calls.interrupt.load(Ordering::SeqCst) => {
                (Verdict::Interrupted { by: Interruption::Caller }, None)
            }
            Some(End::Raised | End::Interrupted) => (facts.or(Verdict::Exit { code: 1 }), Some(1)),
            None => self.died(facts, report),
        }
    }

    /// The verdict on a cell that the host stopped.
    fn stopped(&self, reason: Reason, end: Option<End>, report: &mut Report) -> Verdict {
        let obeyed = end.is_some() && !self.was_killed;
        let what = if obeyed {
            "the cell was interrupted; the session is alive"
        } else {
            "the cell ignored the interrupt and was killed with its interpreter"
        };
        report.notes.push(what.into());
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let interrupted = |by: Interruption| Verdict::Interrupted { by };
        match reason {
            Reason::Cancelled => Verdict::Cancelled,
            Reason::Wall if obeyed => interrupted(Interruption::Wall),
            Reason::Wall => Verdict::Timeout { limit_ms: millis(self.limits.wall) },
            Reason::Cpu if obeyed => interrupted(Interruption::Cpu),
            Reason::Cpu => Verdict::Cpu { limit_ms: millis(self.limits.cpu.unwrap_or_default()) },
            Reason::Idle if obeyed => interrupted(Interruption::Idle),
            Reason::Idle => Verdict::Idle { limit_ms: millis(self.limits.idle.unwrap_or_default()) },
            Reason::Output if obeyed => interrupted(Interruption::Output),
            Reason::Output => Verdict::Output { limit: self.limits.output_total },
            Reason::Flood => Verdict::Denied {
                rule: format!("more than {} invalid packets on the control descriptor", frame::MAX_STRAY),
            },
        }
    }

    /// The verdict on a cell whose interpreter died.
    fn died(&self, facts: &Facts<'_>, report: &mut Report) -> (Verdict, Option<i32>) {
        report.notes.push("the interpreter and its session ended".into());
        let Some(status) = self.member.status() else {
            if let Some(verdict) = facts.by_host.clone() {
                return (verdict, None);
            }
            if !facts.killed {
                report.notes.push("the exit status is unknown".into());
            }
            return (facts.or(Verdict::Signal { signal: libc::SIGKILL }), None);
        };
        if libc::WIFEXITED(status) {
            let code = libc::WEXITSTATUS(status);
            let verdict = if code == 0 { Verdict::Ok } else { facts.or(Verdict::Exit { code }) };
            return (verdict, Some(code));
        }
        let signal = libc::WTERMSIG(status);
        let verdict = match signal {
            // The host's own signal.
            libc::SIGKILL if facts.by_host.is_some() => {
                return (facts.by_host.clone().unwrap_or(Verdict::Signal { signal }), None);
            }
            libc::SIGKILL if facts.killed => Verdict::Memory { limit: facts.limits.memory },
            libc::SIGSYS => Verdict::Denied { rule: "a system call that the level blocks".into() },
            _ => Verdict::Signal { signal },
        };
        (verdict, None)
    }
}

/// The kernel's counters for a failed cell.
struct Facts<'a> {
    killed: bool,
    refused: bool,
    full: Option<Over>,
    /// The reason why the host or the kernel ended the whole sandbox.
    by_host: Option<Verdict>,
    limits: &'a Limits,
}

impl Facts<'_> {
    /// The reached limit, or else the other verdict.
    fn or(&self, other: Verdict) -> Verdict {
        if self.killed {
            Verdict::Memory { limit: self.limits.memory }
        } else if self.refused {
            Verdict::Processes { limit: self.limits.processes }
        } else if self.full == Some(Over::Bytes) {
            Verdict::Disk { limit: self.limits.workspace_bytes }
        } else if self.full == Some(Over::Inodes) {
            Verdict::Inodes { limit: self.limits.workspace_inodes }
        } else {
            other
        }
    }
}
