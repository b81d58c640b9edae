//! One cell: its code goes to the interpreter, its output and answer come back, and the host's clock and the kernel's
//! counters decide how it ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::Signal;

use super::super::attend;
use super::super::capture::{self, Capture, ResultLine};
use super::super::files::Over;
use super::super::watch::NOTHING;
use super::super::{files, tree};
use super::family::{Family, Packet, buffer, receive};
use super::frame::{self, Answer, End};
use super::member::{Member, nonce};
use crate::session::CellLimits;
use crate::{Cancel, Changes, Event, Interruption, Layer, Limits, Outcome, Reached, Report, Usage, Verdict};
use toolpost_egress::EgressLog;

/// How often the clock and the counters are looked at.
const LOOK: Duration = Duration::from_millis(25);
/// After the end of a cell so much is still read of each stream: more than a pipe holds.
const LAST_OUTPUT: usize = 1 << 20;
/// A family of which the first process is dead says within this time why.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// An interrupt that came so early may have met an interpreter that had not begun.
const EARLY: Duration = Duration::from_millis(50);

/// What other threads ask of the cell that runs.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// Whether the caller wants the cell to stop.
    pub(crate) interrupt: AtomicBool,
}

/// Why the host stops a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    Cancelled,
    Wall,
    Cpu,
    Idle,
    Output,
    Flood,
}

/// The order to stop: the interrupts and, if they do not help, the end.
struct Stop {
    reason: Reason,
    since: Instant,
    interrupts: u32,
}

/// A cell on its way.
struct Cell<'a> {
    member: &'a mut Member,
    limits: &'a CellLimits,
    calls: &'a Calls,
    cancel: &'a Cancel,
    on_event: &'a mut dyn FnMut(Event<'_>),
    since: Instant,
    cpu_before: u64,
    system_before: u64,
    egress_before: Option<EgressLog>,
    /// When something was last done, and the output and processor time of then.
    active: (Instant, u64, u64),
    stdout: Capture,
    stderr: Capture,
    result_line: ResultLine,
    answer: Answer,
    packets: std::collections::VecDeque<Vec<u8>>,
    buffer: Vec<u8>,
    stop: Option<Stop>,
    /// When the caller's interrupt was sent, and whether it was sent again.
    interrupted: Option<(Instant, bool)>,
    is_dead: bool,
    was_killed: bool,
}

fn processor_micros(family: &Family) -> u64 {
    family.group.processor_micros().unwrap_or_else(|| tree::processor_micros(family.pid))
}

/// The part of it that was spent in the kernel.
fn system_micros(family: &Family) -> u64 {
    family.group.system_micros().unwrap_or_else(|| tree::system_micros(family.pid))
}

/// Throws away what is in a pipe, and gives how much it was.
fn discard(stream: &OwnedFd, buffer: &mut [u8]) -> usize {
    let mut total = 0;
    while total < LAST_OUTPUT
        && let Ok(size) = rustix::io::read(stream, &mut *buffer)
        && size > 0
    {
        total += size;
    }
    total
}

/// Runs a cell. The second value says why the interpreter is gone, if it is.
pub(super) fn run(
    member: &mut Member,
    number: u32,
    code: &str,
    limits: &CellLimits,
    calls: &Calls,
    cancel: &Cancel,
    on_event: &mut dyn FnMut(Event<'_>),
) -> (Outcome, Option<String>) {
    let since = Instant::now();
    let mut report = member.family.report.clone();
    let mut buffer = buffer();
    let stale = discard(&member.stdout, &mut buffer) + discard(&member.stderr, &mut buffer);
    if stale > 0 {
        report.notes.push(format!("{stale} bytes of output came between the cells and are in none"));
    }
    member.refresh();
    // Packets that came between the cells belong to nobody.
    for _ in 0..frame::MAXIMUM_STRAY {
        if !matches!(receive(&member.socket, &mut buffer), Packet::From(..)) {
            break;
        }
    }
    let Ok(nonce) = nonce() else {
        report.notes.push("the host has no random numbers".into());
        return (Outcome::new(Verdict::Cancelled, report), None);
    };
    let mut cell = Cell {
        limits,
        calls,
        cancel,
        on_event,
        since,
        cpu_before: processor_micros(&member.family),
        system_before: system_micros(&member.family),
        egress_before: member.family.egress(),
        active: (since, 0, 0),
        stdout: Capture::new(limits.stdout),
        stderr: Capture::new(limits.stderr),
        result_line: ResultLine::new(limits.value_bytes),
        answer: Answer::new(nonce, limits.value_bytes),
        packets: frame::cell(&nonce, number, limits.value_bytes, code.as_bytes()).into(),
        buffer,
        stop: None,
        interrupted: None,
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

    /// Looks at the clock and the counters, waits, and takes what has come.
    fn step(&mut self) {
        self.watch();
        let now = Instant::now();
        let most = self
            .limits
            .wall
            .saturating_sub(now.duration_since(self.since))
            .clamp(Duration::from_millis(1), LOOK);
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
        // Last: what it said before its end counts.
        if has(1, readable) {
            self.answers();
            self.is_dead = true;
        }
    }

    /// Decides whether the cell must stop, and makes it.
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
                let used = processor_micros(&self.member.family).saturating_sub(self.cpu_before);
                self.over(now, output, used)
            } else {
                None
            };
            self.stop = reason.map(|reason| Stop { reason, since: now, interrupts: 0 });
        }
        if let Some(stop) = &mut self.stop {
            let passed = now.duration_since(stop.since);
            let due = if passed >= self.limits.grace / 2 { 2 } else { 1 };
            // What floods the host does not get time to do more of it.
            if stop.reason == Reason::Flood || passed >= self.limits.grace {
                self.was_killed = true;
                self.member.kill();
            } else if stop.interrupts < due {
                stop.interrupts = due;
                self.member.signal(Signal::INT);
            }
        }
        let wanted = self.calls.interrupt.load(Ordering::SeqCst);
        match &mut self.interrupted {
            None if wanted => self.interrupted = Some((now, false)),
            Some((at, again)) if !*again && now.duration_since(*at) >= EARLY => {
                *again = true;
                if at.duration_since(self.since) < EARLY {
                    self.member.signal(Signal::INT);
                }
            }
            _ => {}
        }
    }

    /// Whether the limit of processor time, or of the time without any, is reached.
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
                // The interpreter has closed its end, or soon will be found dead.
                Err(_) => self.packets.clear(),
            }
        }
    }

    /// Takes what packets there are, not more than a few at a time: the clock must be looked at.
    fn answers(&mut self) {
        for _ in 0..64 {
            match receive(&self.member.socket, &mut self.buffer) {
                Packet::From(size, sender) => {
                    let packet = self.buffer.get(..size).unwrap_or_default();
                    self.answer.take(packet, sender == self.member.pid);
                }
                Packet::Nothing => return,
                Packet::End => {
                    // Nobody holds the other end any more: without it the interpreter can never answer.
                    if !self.is_dead && self.answer.end().is_none() {
                        self.was_killed = self.stop.is_some();
                        self.member.kill();
                    }
                    return;
                }
            }
        }
    }

    /// Takes a piece of output. Gives how much it was.
    fn output(&mut self, is_error: bool) -> usize {
        let stream = if is_error { &self.member.stderr } else { &self.member.stdout };
        let size = rustix::io::read(stream, &mut *self.buffer).unwrap_or(0);
        let bytes = self.buffer.get(..size).unwrap_or_default();
        if bytes.is_empty() {
            return 0;
        }
        if is_error {
            self.stderr.push(bytes);
            (self.on_event)(Event::Stderr(bytes));
        } else {
            self.stdout.push(bytes);
            self.result_line.push(bytes);
            (self.on_event)(Event::Stdout(bytes));
        }
        size
    }

    /// What the cell wrote before its end is in the pipes now.
    fn last_output(&mut self) {
        for is_error in [false, true] {
            let mut total = 0;
            while total < LAST_OUTPUT {
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
        let family = std::sync::Arc::clone(&self.member.family);
        let remains = if self.is_dead && end.is_none() {
            // The origin may have died with it: then all are dead.
            family.remains_within(Duration::from_millis(if self.was_killed { 0 } else { 20 })).or_else(|| {
                // The host ends the family, and reads the last of its output before it says why.
                (!self.was_killed && family.is_dying()).then(|| family.remains_within(LAST_WORDS)).flatten()
            })
        } else {
            None
        };
        let used = processor_micros(&family).saturating_sub(self.cpu_before);
        let system = system_micros(&family).saturating_sub(self.system_before).min(used);
        let now = match remains {
            Some(remains) => (remains.memory_kills, remains.refused),
            None => (family.group.memory_kills(), family.group.refused_processes()),
        };
        let (killed, refused) = (now.0 > self.member.counted.0, now.1 > self.member.counted.1);
        self.member.counted = now;
        let folder = self.member.workspace().map(std::sync::Arc::clone);
        let full = folder
            .as_ref()
            .filter(|_| family.report.has(Layer::WorkspaceQuota))
            .and_then(|folder| attend::full(&folder.descriptor));
        let by_host = remains.and_then(|remains| remains.verdict.clone());
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
        let facts = Facts { killed, refused, full, by_host, limits: &family.limits };
        let (verdict, exit_code) = self.verdict(end, &facts, &mut report);
        let reason = self.why_gone(end);
        let Self { answer, stdout, stderr, result_line, .. } = self;
        let (bytes, overflowed) = answer.finish(&mut report.notes);
        let line = result_line.finish();
        let value = capture::value(&bytes, overflowed, line.as_deref(), &mut report);
        if let Some(log) = family.egress_at_end() {
            let log = log.since(self.egress_before.as_ref());
            report.reached.extend(crate::verdict::reached_network(&log));
            report.notes.extend(log.notes());
            report.egress = Some(log);
        }
        let (stdout, stderr) = (stdout.finish(), stderr.finish());
        for (captured, limit) in [(&stdout, Reached::Stdout), (&stderr, Reached::Stderr)] {
            if captured.dropped > 0 {
                report.reached.push(limit);
            }
        }
        let mut changes = Changes::default();
        let mut artifacts = Vec::new();
        if let Some(folder) = &folder {
            let after = self.member.list();
            changes = files::compare(&self.member.before, &after);
            if let Some(reason) = after.left_out {
                report.reached.push(Reached::Changes);
                report.notes.push(format!("not every file is listed: {reason}"));
            }
            let limits = Limits {
                artifacts: self.limits.artifacts,
                artifact_bytes: self.limits.artifact_bytes,
                ..family.limits.clone()
            };
            artifacts = files::collect_in(folder, &changes, &after, &limits, &mut report);
            self.member.before = after;
        }
        let mut applied = None;
        let mut layer = family.layer.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(layer) = layer.as_mut() {
            match layer.apply() {
                Ok(done) => applied = done,
                Err(error) => report.notes.push(format!("what the cell changed was not applied: {error}")),
            }
        }
        drop(layer);
        let usage = Usage {
            wall,
            user: Duration::from_micros(used - system),
            system: Duration::from_micros(system),
            largest_process: 0,
            peak_memory: family.group.peak_memory(),
        };
        let outcome = Outcome {
            exit_code,
            stdout,
            stderr,
            value_printed: value.is_some() && capture::is_value(line.as_deref()),
            value,
            artifacts,
            changes,
            applied,
            usage,
            ..Outcome::new(verdict, report)
        };
        (outcome, reason)
    }

    /// Why the interpreter is gone, if it is.
    fn why_gone(&self, end: Option<End>) -> Option<String> {
        if end.is_some() && !self.was_killed {
            return None;
        }
        Some(match self.stop.as_ref().map(|stop| stop.reason) {
            Some(Reason::Wall) => "a cell exceeded its wall time and did not obey the interrupt".into(),
            Some(Reason::Cpu) => "a cell exceeded its processor time and did not obey the interrupt".into(),
            Some(Reason::Idle) => "a cell was idle and did not obey the interrupt".into(),
            Some(Reason::Output) => "a cell wrote too much and did not obey the interrupt".into(),
            Some(Reason::Cancelled) => "a cell was cancelled and did not obey the interrupt".into(),
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
            "the cell was interrupted and the session lives on"
        } else {
            "the cell did not obey the interrupt and was killed with its interpreter"
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
                rule: format!(
                    "more than {} packets on the control descriptor that belong to nothing",
                    frame::MAXIMUM_STRAY
                ),
            },
        }
    }

    /// The verdict on an interpreter that died by itself.
    fn died(&self, facts: &Facts<'_>, report: &mut Report) -> (Verdict, Option<i32>) {
        report.notes.push("the interpreter ended, and the session with it".into());
        let Some(status) = self.member.status() else {
            if let Some(verdict) = facts.by_host.clone() {
                return (verdict, None);
            }
            if !facts.killed {
                report.notes.push("how it ended is not known".into());
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
            // The host's own signal, and what it was for.
            libc::SIGKILL if facts.by_host.is_some() => {
                return (facts.by_host.clone().unwrap_or(Verdict::Signal { signal }), None);
            }
            libc::SIGKILL if facts.killed => Verdict::Memory { limit: facts.limits.memory },
            libc::SIGSYS => Verdict::Denied { rule: "a system call that the level does not allow".into() },
            _ => Verdict::Signal { signal },
        };
        (verdict, None)
    }
}

/// What the kernel's counters say about a cell that failed.
struct Facts<'a> {
    killed: bool,
    refused: bool,
    full: Option<Over>,
    /// Why the host, or the kernel, ended the whole family.
    by_host: Option<Verdict>,
    limits: &'a Limits,
}

impl Facts<'_> {
    /// The limit that was reached, or else the other verdict.
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
