//! The second half of a run: supervises it to its end and creates the outcome.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};

use super::cgroup::Group;
use super::files::{self, Directory, Listing, Measure, Measured, Over};
use super::launch;
use super::layer::LiveLayer;
use super::prepare::{Kept, Place, setup};
use super::seccomp;
use super::supervise::{self, Ended, Failure, Finished, ProgramProcess, Streams, Supervision};
use super::system_calls;
use super::value::value;
use crate::apply::CANCELLED;
use crate::{
    Applied, ApplyState, Cancel, Changes, Error, Layer, Level, Limits, MissingLayer, Outcome, Reached,
    Repeat, Report, ResourceUsage, Sandbox, SandboxArtifact, SandboxEvent, Verdict,
};

/// The maximum interval at which the kernel checks processor time.
const MAX_TICK: Duration = Duration::from_millis(10);

/// A run with a live child. Dropping it kills everything that it started.
pub(super) struct Started {
    pub(super) running: ProgramProcess,
    pub(super) streams: Streams,
    /// The names and subjects of the child's steps, for error messages.
    pub(super) names: Vec<(&'static str, Option<String>)>,
    pub(super) kept: Kept,
}

impl Started {
    /// Hands the copy of a program with live streams over, before its caller gets the streams and asks for its changes.
    pub(super) fn begin_live_copy(&mut self, sandbox: &Sandbox) -> Result<(), Error> {
        let kept = &mut self.kept;
        if !kept.is_live {
            return Ok(());
        }
        match std::mem::replace(&mut kept.place, Place::Private) {
            Place::Copy(copied) => {
                let duplicate = |directory| launch::duplicate(directory).map_err(setup("keep workspace"));
                let merged = duplicate(copied.copy.directory())?;
                kept.live_copy = Some((duplicate(merged.as_fd())?, copied.measure));
                let layer = LiveLayer::of_copy(copied.copy, sandbox, kept.limits.clone());
                kept.live_directory.begin(layer, merged, kept.owner);
            }
            other => kept.place = other,
        }
        Ok(())
    }
}

/// Supervises a run to its end. Time limits count from `since`.
pub(super) fn attend(
    started: Started,
    sandbox: &Sandbox,
    since: Instant,
    cancel: &Cancel,
    on_event: &mut dyn FnMut(SandboxEvent<'_>),
) -> Result<Outcome, Error> {
    let Started { mut running, streams, names, kept } = started;
    let Kept {
        mut place,
        mut before,
        child_waits,
        owner,
        mut report,
        is_live,
        program,
        language,
        limits,
        egress,
        live_directory,
        live_copy,
        home,
        workspace,
    } = kept;
    let limits = &limits;
    let mut live_layer = match &mut place {
        Place::Host(directory) if is_live => directory.take_layer(),
        _ => None,
    }
    .map(|layer| LiveLayer::new(layer, sandbox, limits.clone()));
    let live_upper = live_layer.as_ref().map(LiveLayer::upper).transpose()?;
    let measured = match (&place, &live_copy) {
        (_, Some((copy, before))) => Some(Measured { directory: copy.as_fd(), before: *before }),
        (Place::Copy(copied), _) => {
            Some(Measured { directory: copied.copy.directory(), before: copied.measure })
        }
        (Place::Temporary(directory), _) => {
            Some(Measured { directory: directory.descriptor(), before: Measure::default() })
        }
        (Place::Host(directory), _) => match &live_upper {
            Some(upper) => Some(upper.as_fd()),
            None => directory.layer().map(super::layer::Overlay::upper),
        }
        .map(|directory| Measured { directory, before: Measure::default() }),
        _ => None,
    };
    let measured = measured.filter(|measured| measurable(measured.directory, &mut report).is_some());
    let home_measure = home
        .as_ref()
        .filter(|_| report.effective.is_boundary())
        .map(|home| Measured { directory: home.descriptor(), before: Measure::default() });
    let measured: Vec<Measured<'_>> = measured.into_iter().chain(home_measure).collect();
    let mut on_directory = |descriptor: BorrowedFd<'_>| {
        if let Some(layer) = live_layer.take() {
            let merged = launch::duplicate(descriptor).map_err(setup("keep workspace"))?;
            live_directory.begin(layer, merged, owner);
            return Ok(());
        }
        if sandbox.files.is_empty() {
            return Ok(());
        }
        files::upload(descriptor, &sandbox.files, limits, owner)?;
        before = files::list(descriptor);
        Ok(())
    };
    let mut egress = egress;
    let mut proxy = None;
    let mut on_listener = |listener: OwnedFd| {
        if let Some(armed) = egress.take() {
            let started = armed.start(listener.into(), limits.network_bytes);
            proxy = Some(started.map_err(setup("start egress proxy"))?);
        }
        Ok(())
    };
    let finished = supervise::supervise(Supervision {
        running: &mut running,
        streams,
        limits,
        level: report.effective,
        cancel,
        on_event,
        started: since,
        on_directory: &mut on_directory,
        child_waits,
        on_listener: &mut on_listener,
        measured: &measured,
    });
    let (live, last_apply) = live_directory.take();
    let live = live.or(live_layer);
    let mut finished = match finished {
        Ok(finished) => finished,
        Err(failure) => {
            if !matches!(failure, Failure::Host(_)) {
                drop(measured);
                if let Some(live) = live {
                    live.discard();
                }
                if let Place::Copy(copied) = place {
                    copied.copy.discard();
                }
            }
            return Err(explain(failure, &names, &program));
        }
    };
    let wall = since.elapsed();
    if let Some(proxy) = proxy {
        report.record_egress(proxy.finish());
    }

    let private_directory = finished.directory.take().or(workspace);
    let full = private_directory.as_ref().and_then(full);
    let mut verdict = verdict(&finished, limits, &running.group, full, &mut report);
    let exit_code = match (&finished.ended, finished.status) {
        (None, Some(status)) if libc::WIFEXITED(status.wait) => Some(libc::WEXITSTATUS(status.wait)),
        _ => None,
    };
    let usage = ResourceUsage {
        wall,
        user: Duration::from_micros(finished.usage.user_micros),
        system: Duration::from_micros(finished.usage.system_micros),
        largest_process: finished.status.map_or(0, |status| status.largest),
        peak_memory: running.group.peak_memory(),
    };
    let printed = || language.filter(|_| verdict.is_ok())?.printed_value(&finished.stdout);
    let value = value(&finished.value, finished.result_line.as_ref(), printed, language, &mut report);
    if finished.stdout.dropped > 0 {
        report.reached.push(Reached::Stdout);
    }
    if finished.stderr.dropped > 0 {
        report.reached.push(Reached::Stderr);
    }
    let mut applied = None;
    let mut changes = Changes::default();
    let mut artifacts = Vec::new();
    if let Some(layer) = live {
        let ended = layer.end()?;
        applied = Some(ended).filter(is_of_note);
    }
    drop(last_apply);
    drop(measured);
    let is_silent = [&finished.stdout, &finished.stderr]
        .iter()
        .all(|stream| stream.head.is_empty() && stream.dropped == 0);
    let directory = match place {
        Place::Host(directory) if directory.layer().is_some() => {
            if let Some(layer) = directory.into_layer() {
                let ending = Ending { sandbox, limits, before: &before, is_live, is_silent };
                (changes, artifacts, applied) = ending.collect(layer, &mut verdict, &mut report)?;
            }
            None
        }
        Place::Copy(copied) => {
            let now = files::list(copied.copy.directory());
            before.files.retain(|path, entry| now.files.get(path) == Some(entry));
            let (layer, denied) = copied.copy.seal()?;
            // Their times of change are others there.
            let names: Vec<String> =
                before.files.keys().filter_map(|path| Some(path.to_str()?.into())).collect();
            let before = files::listed(layer.upper(), names.iter());
            let ending = Ending { sandbox, limits, before: &before, is_live, is_silent };
            (changes, artifacts, applied) = ending.collect(layer, &mut verdict, &mut report)?;
            if let Some(applied) = &mut applied {
                for (path, reason) in denied {
                    applied.deny_unlisted(&path, reason, crate::ReviewDecision::Denied);
                }
            }
            None
        }
        _ if is_live => None,
        Place::Plain(_) => None,
        Place::Private => private_directory.map(Directory::new),
        Place::Temporary(temporary) => launch::duplicate(temporary.descriptor())
            .ok()
            .map(|descriptor| Directory { _temporary: Some(temporary), ..Directory::new(descriptor) }),
        Place::Host(directory) if directory.is_read_only() => None,
        Place::Host(directory) => launch::duplicate(directory.descriptor()).ok().map(Directory::new),
    };
    if let Some(directory) = directory {
        let after = files::list(directory.descriptor.as_fd());
        changes = files::compare(&before, &after);
        of_full_size(&after, &changes, limits, &mut verdict, &mut report);
        if let Some(reason) = after.left_out {
            report.reached.push(Reached::Changes);
            report.notes.push(format!("some files are not listed: {reason}"));
        }
        artifacts = files::collect(directory, &changes, &after, limits, &mut report);
    }
    if finished.is_alone
        && let Some(cleaner) = running.cleaner.take()
    {
        cleaner.clean(running);
    }
    Ok(Outcome {
        verdict,
        exit_code,
        stdout: finished.stdout,
        stderr: finished.stderr,
        value_printed: value.as_ref().is_some_and(|found| found.is_printed),
        value: value.map(|found| found.value),
        artifacts,
        changes,
        applied,
        usage,
        report,
    })
}

/// Whether a file has reached the size limit.
fn of_full_size(
    after: &Listing,
    changes: &Changes,
    limits: &Limits,
    verdict: &mut Verdict,
    report: &mut Report,
) {
    if after.has_file_of(limits.file_size, changes) {
        report.reached.push(Reached::FileSize);
        // The signal alone is not proof: a program can send it to itself.
        if *verdict == (Verdict::Signal { signal: libc::SIGXFSZ }) {
            *verdict = Verdict::FileSize { limit: limits.file_size };
        }
    }
}

/// Whether there was anything to apply.
fn is_of_note(applied: &Applied) -> bool {
    applied.state != ApplyState::Applied || applied.changed + applied.denied_count > 0
}

/// The end of a run in a private layer.
struct Ending<'a> {
    sandbox: &'a Sandbox,
    limits: &'a Limits,
    /// The files that the host put into the layer.
    before: &'a Listing,
    is_live: bool,
    /// Whether the program printed nothing.
    is_silent: bool,
}

impl Ending<'_> {
    /// Lists the changes, opens the artifacts, and applies.
    fn collect(
        &self,
        mut layer: super::layer::Overlay,
        verdict: &mut Verdict,
        report: &mut Report,
    ) -> Result<(Changes, Vec<SandboxArtifact>, Option<Applied>), Error> {
        let listed = layer.listed();
        let mut changes = listed.changes;
        changes.new.retain(|path| self.before.files.get(path) != listed.after.files.get(path));
        if let Some(reason) = listed.after.left_out {
            report.reached.push(Reached::Changes);
            report.notes.push(format!("some files are not listed: {reason}"));
        }
        of_full_size(&listed.after, &changes, self.limits, verdict, report);
        let directory = Arc::new(Directory {
            applied: Some(launch::duplicate(layer.host()).map_err(setup("open workspace"))?),
            ..Directory::new(launch::duplicate(layer.upper()).map_err(setup("open workspace"))?)
        });
        let notes = report.notes.len();
        let artifacts = if self.is_live {
            Vec::new()
        } else {
            files::collect_in(&directory, &changes, &listed.after, self.limits, report)
        };
        let rules = layer.rules_of_changes(self.sandbox);
        self.judge_size(&layer, verdict, report);
        let held_because = (*verdict == Verdict::Cancelled).then_some(CANCELLED);
        if !self.is_live && self.sandbox.is_closed() && self.is_repeated() {
            layer.postpone_on_conflict();
        }
        let applied = layer.end(self.sandbox.apply, held_because, &rules)?;
        if applied.state == ApplyState::Applied {
            // Other files are in the host directory or among the denied ones.
            report.notes.truncate(notes);
        }
        // Denied files are read from the layer while the outcome lives.
        directory.keep(layer);
        Ok((changes, artifacts, Some(applied).filter(is_of_note)))
    }

    fn is_repeated(&self) -> bool {
        match self.sandbox.repeat {
            Repeat::Never => false,
            Repeat::IfSilent => self.is_silent,
            Repeat::Always => true,
        }
    }

    /// Judges the size of the changes once more: a program can write much between two measurements.
    fn judge_size(&self, layer: &super::layer::Overlay, verdict: &mut Verdict, report: &mut Report) {
        let Some(over) = files::layer_over(layer.upper(), self.limits) else { return };
        let (reached, limited) = match over {
            Over::Bytes => (Reached::Disk, Verdict::Disk { limit: self.limits.workspace_bytes }),
            Over::Inodes => (Reached::Inodes, Verdict::Inodes { limit: self.limits.workspace_inodes }),
        };
        if !report.reached.contains(&reached) {
            report.reached.push(reached);
        }
        if matches!(verdict, Verdict::Ok | Verdict::Exit { .. } | Verdict::Signal { .. }) {
            *verdict = limited;
        }
    }
}

/// Returns a workspace that the host can measure. Otherwise adds the reason to the report and none is full.
pub(super) fn measurable<'a>(directory: BorrowedFd<'a>, report: &mut Report) -> Option<BorrowedFd<'a>> {
    let Some(reason) = files::not_measurable(directory) else { return Some(directory) };
    report.missing.retain(|missing| missing.layer != Layer::WorkspaceQuota);
    let reason = format!("the workspace is neither limited nor measured: {reason}");
    report.missing.push(MissingLayer { layer: Layer::WorkspaceQuota, reason });
    None
}

/// The kernel denied a set-up step; the program did not start.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct StepRefused(String);

/// Whether an error is a set-up step that the kernel denied.
pub(super) fn is_step_refused(error: &Error) -> bool {
    let Error::Setup { source, .. } = error else { return false };
    source.get_ref().and_then(|inner| inner.downcast_ref::<StepRefused>()).is_some()
}

pub(super) fn explain(failure: Failure, names: &[(&'static str, Option<String>)], program: &Path) -> Error {
    match failure {
        Failure::Host(error) => error,
        Failure::Program(error) => Error::ProgramNotStarted {
            program: program.display().to_string(),
            source: std::io::Error::from_raw_os_error(error),
        },
        Failure::Step(index, error) => {
            let (step, subject) = names.get(index).cloned().unwrap_or(("set-up", None));
            let system = std::io::Error::from_raw_os_error(error);
            let subject = subject.map_or_else(String::new, |subject| format!("{subject}: "));
            let source = std::io::Error::new(system.kind(), StepRefused(format!("{subject}{system}")));
            Error::Setup { step, source }
        }
    }
}

/// Which limit of a fresh workspace is exhausted.
pub(super) fn full(directory: &OwnedFd) -> Option<Over> {
    let space = rustix::fs::fstatvfs(directory).ok()?;
    match (space.f_bavail, space.f_ffree) {
        (0, _) => Some(Over::Bytes),
        (_, 0) => Some(Over::Inodes),
        _ => None,
    }
}

fn verdict(
    finished: &Finished,
    limits: &Limits,
    group: &Group,
    full: Option<Over>,
    report: &mut Report,
) -> Verdict {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let (killed, refused) = (group.memory_kills() > 0, group.refused_processes() > 0);
    for (reached, limit) in [
        (killed || finished.ended == Some(Ended::Memory), Reached::Memory),
        (refused, Reached::Processes),
        (full == Some(Over::Bytes) || finished.ended == Some(Ended::Disk), Reached::Disk),
        (full == Some(Over::Inodes) || finished.ended == Some(Ended::Inodes), Reached::Inodes),
    ] {
        if reached {
            report.reached.push(limit);
        }
    }
    let cpu = limits.cpu.map(|limit| Verdict::Cpu { limit_ms: millis(limit) });
    match finished.ended {
        Some(Ended::Cancelled) => return Verdict::Cancelled,
        Some(Ended::Timeout) => return Verdict::Timeout { limit_ms: millis(limits.wall) },
        Some(Ended::Idle) => {
            return Verdict::Idle { limit_ms: limits.idle.map_or(0, millis) };
        }
        Some(Ended::Memory) => return Verdict::Memory { limit: limits.memory },
        Some(Ended::Processes) => return Verdict::Processes { limit: limits.processes },
        Some(Ended::Inodes) => return Verdict::Inodes { limit: limits.workspace_inodes },
        Some(Ended::Output) => return Verdict::Output { limit: limits.output_total },
        Some(Ended::Disk) => return Verdict::Disk { limit: limits.workspace_bytes },
        Some(Ended::Denied(call)) => return Verdict::Denied { rule: system_calls::rule(call) },
        Some(Ended::Cpu) => return cpu.unwrap_or(Verdict::Cancelled),
        None => {}
    }
    let Some(status) = finished.status else {
        if killed {
            return Verdict::Memory { limit: limits.memory };
        }
        report.notes.push("the first process of the sandbox was killed from outside".into());
        return Verdict::Signal { signal: libc::SIGKILL };
    };
    if libc::WIFEXITED(status.wait) {
        return match libc::WEXITSTATUS(status.wait) {
            0 => Verdict::Ok,
            _ if killed => Verdict::Memory { limit: limits.memory },
            _ if refused => Verdict::Processes { limit: limits.processes },
            _ if full == Some(Over::Bytes) => Verdict::Disk { limit: limits.workspace_bytes },
            _ if full == Some(Over::Inodes) => Verdict::Inodes { limit: limits.workspace_inodes },
            code => Verdict::Exit { code },
        };
    }
    let signal = libc::WTERMSIG(status.wait);
    let used = Duration::from_micros(finished.usage.user_micros + finished.usage.system_micros);
    match (signal, limits.cpu, cpu) {
        // The kernel sends this at its count of whole ticks but reports the exact time, which is lower on a
        // busy machine: 766 ms of 1 s were seen.
        (libc::SIGXCPU, Some(limit), Some(verdict)) if used + limit / 2 + MAX_TICK >= limit => verdict,
        (libc::SIGKILL, Some(limit), Some(verdict)) if used >= limit => verdict,
        (libc::SIGKILL, ..) if killed => Verdict::Memory { limit: limits.memory },
        (libc::SIGSYS, ..) if report.effective == Level::Maximum && !seccomp::can_tell() => Verdict::Denied {
            rule:
                "a system call outside the allowlist of level `maximum` (this kernel does not report which)"
                    .into(),
        },
        (libc::SIGSYS, ..) => {
            Verdict::Denied { rule: "system calls of another machine or interface (int 0x80, x32)".into() }
        }
        _ => Verdict::Signal { signal },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Host, Level, Program};

    #[test]
    fn layers_are_named_once_each() {
        let host = Host::probe();
        if !host.availability(Level::Strict).is_some_and(|entry| entry.available) {
            println!("SKIP layers_are_named_once_each: level strict is not available");
            return;
        }
        let outcome = Sandbox::new()
            .level(Level::Strict)
            .run(&Program::argv(["true"]), &Cancel::new(), &mut |_| {})
            .unwrap();
        let mut layers = outcome.report.layers.clone();
        layers.dedup();
        assert_eq!(layers, outcome.report.layers);
        for missing in &outcome.report.missing {
            assert!(!layers.contains(&missing.layer), "{missing:?}");
        }
        assert!(outcome.report.has(Layer::Seccomp));
    }
}
