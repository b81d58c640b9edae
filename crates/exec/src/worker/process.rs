//! One worker process, as its parent sees it.

use std::ffi::OsString;
use std::io::Read as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use toolpost_core::{RetryAdvice, Suggestion, ToolError, format_duration};
use toolpost_sandbox::{Cancel, Limits, Program, Running, Sandbox, Verdict, Workspace};

use super::frame::{OrderFrame, Report, ReportFrame};
use super::{MARKER, WorkerSettings};
use crate::protocol::frame::ToolMessage;
use crate::protocol::line::{Line, MAX_LINE};
use crate::server::{Inlet, Outlet};

/// Retained end of a worker's stderr, in bytes.
const MAX_ERRORS: usize = 4 << 10;
/// Maximum number of lines before a program is ready.
const MAX_PREAMBLE: usize = 64;
/// A worker has no timeout of its own; each call has one.
const LIFETIME: Duration = Duration::from_hours(24 * 365);

/// A worker, idle or busy. Dropping it kills it and its descendants.
pub(super) struct Worker {
    running: Option<Running>,
    cancel: Cancel,
    input: Outlet,
    output: Inlet,
    errors: Arc<Mutex<Vec<u8>>>,
    /// Its memory limit.
    pub(super) memory: u64,
    /// Number of its next attempt.
    pub(super) next: u64,
    /// Counts it while it exists.
    _counted: Counted,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("running", &self.running).finish_non_exhaustive()
    }
}

/// Increments a counter while it exists.
#[derive(Debug)]
pub(super) struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Worker {
    /// Starts a worker and waits until it is ready.
    pub(super) async fn start(
        settings: &WorkerSettings,
        memory: u64,
        counted: Counted,
    ) -> Result<Self, ToolError> {
        let sandbox = sandbox(settings, memory);
        let line =
            std::iter::once(settings.program.clone().into_os_string()).chain(settings.arguments.clone());
        let program = Program::operator_argv(line.collect::<Vec<OsString>>());
        // Starting a process blocks for about a millisecond.
        let mut worker =
            tokio::task::spawn_blocking(move || Self::start_blocking(&sandbox, &program, memory, counted))
                .await??;
        match tokio::time::timeout(settings.start_timeout, worker.ready()).await {
            Ok(Ok(())) => Ok(worker),
            Ok(Err(())) => {
                let why = worker.end().await;
                Err(no_entry(settings, "exited before it was ready").with("ended", why.message()))
            }
            Err(_) => {
                worker.kill().await;
                let limit = format_duration(settings.start_timeout);
                Err(no_entry(settings, &format!("was not ready within {limit}")))
            }
        }
    }

    fn start_blocking(
        sandbox: &Sandbox,
        program: &Program,
        memory: u64,
        counted: Counted,
    ) -> Result<Self, ToolError> {
        let failed = |error: toolpost_sandbox::Error| {
            let hint = error.hint();
            ToolError::dependency(format!("cannot start a worker process: {error}"))
                .suggest_maybe(hint.as_ref().map(Suggestion::new))
                .caused_by(error)
        };
        let mut running = sandbox.start(program).map_err(failed)?;
        let cancel = running.cancel();
        let errors = Arc::new(Mutex::new(Vec::new()));
        let (Some(input), Some((output, mut stderr))) = (running.take_stdin(), running.take_output()) else {
            return Err(ToolError::internal("a worker process has no streams"));
        };
        let tail = Arc::clone(&errors);
        let read = move || {
            let mut piece = [0; 1 << 10];
            while let Ok(read @ 1..) = stderr.read(&mut piece) {
                let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
                tail.extend_from_slice(piece.get(..read).unwrap_or_default());
                let excess = tail.len().saturating_sub(MAX_ERRORS);
                tail.drain(..excess);
            }
        };
        std::thread::Builder::new().name("worker errors".into()).spawn(read)?;
        Ok(Self {
            running: Some(running),
            cancel,
            input: Outlet::new(Box::new(input)),
            output: Inlet::new(Box::new(output)),
            errors,
            memory,
            next: 1,
            _counted: counted,
        })
    }

    /// Waits for the first frame. Output before it is ignored.
    async fn ready(&mut self) -> Result<(), ()> {
        for _ in 0..MAX_PREAMBLE {
            let Some(Line::Whole(line)) = self.output.line().await else { return Err(()) };
            if let Ok(frame) = ReportFrame::read(&line)
                && let Report::Tool(message) = frame.message
                && matches!(*message, ToolMessage::Hello { .. })
            {
                return Ok(());
            }
        }
        Err(())
    }

    /// Writes a frame.
    ///
    /// # Errors
    /// `LIMIT` if the frame is too large. A closed stream shows as a missing answer.
    pub(super) async fn send(&self, frame: &OrderFrame) -> Result<(), ToolError> {
        let line = frame.to_line()?;
        if line.len() > MAX_LINE {
            return Err(ToolError::limit(format!(
                "the frame has {} bytes; the maximum between processes is 32 MiB",
                line.len()
            ))
            .suggest("Write large data to a file and pass its path."));
        }
        self.input.send(line).await;
        Ok(())
    }

    /// Whether all sent frames were written. A process that is dead receives none.
    pub(super) async fn has_received(&self) -> bool {
        self.input.flush().await
    }

    /// The next frame; `None` at the end of the output or after an invalid line.
    pub(super) async fn next_report(&self) -> Option<ReportFrame> {
        match self.output.line().await? {
            Line::Whole(line) => ReportFrame::read(&line).ok(),
            Line::TooLong { .. } => None,
        }
    }

    /// Kills the worker, and waits until it and its descendants are dead.
    pub(super) async fn kill(mut self) {
        self.cancel.cancel();
        if let Some(running) = self.running.take() {
            // If this future is dropped, the thread continues.
            let _ = tokio::task::spawn_blocking(move || running.wait()).await;
        }
    }

    /// Waits for the end of the worker and its descendants, and returns the reason.
    pub(super) async fn end(mut self) -> ToolError {
        let running = self.running.take();
        let cancel = self.cancel.clone();
        let ended = tokio::task::spawn_blocking(move || {
            // Its streams are closed, so it is useless even if it keeps running.
            let late = std::thread::spawn(move || {
                std::thread::park_timeout(Duration::from_millis(200));
                cancel.cancel();
            });
            let outcome = running.map(Running::wait);
            late.thread().unpark();
            outcome
        });
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let died = match ended.await {
            Ok(Some(Ok(outcome))) => died(&outcome.verdict),
            _ => ToolError::dependency("the worker process ended with an unknown status"),
        };
        let stderr = String::from_utf8_lossy(&errors).into_owned();
        let died = if stderr.trim().is_empty() { died } else { died.with("stderr", json!(stderr)) };
        died.retry(RetryAdvice::Never)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let Some(running) = self.running.take() else { return };
        self.cancel.cancel();
        // Waiting for its end takes milliseconds and must not block the executor.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(running));
        }
    }
}

fn sandbox(settings: &WorkerSettings, memory: u64) -> Sandbox {
    // A worker is as trusted as its parent: limit only its memory, and kill all its descendants.
    let limits = Limits::default()
        .with_wall(LIFETIME)
        .with_memory(memory)
        .with_processes(4096)
        .with_descriptors(4096)
        .with_file_size(1 << 50);
    let mut sandbox =
        Sandbox::unconfined().limits(limits).workspace(Workspace::Host(settings.directory.clone()));
    for (name, value) in &settings.environment {
        // Variables that the sandbox rejects are ignored.
        if Sandbox::new().env(name, value).check_settings().is_ok() {
            sandbox = sandbox.env(name, value);
        }
    }
    sandbox.env(MARKER, settings.program.as_os_str())
}

fn no_entry(settings: &WorkerSettings, what: &str) -> ToolError {
    ToolError::precondition(format!("the worker `{}` {what}", settings.program.display())).suggest(
        "Call `toolpost::worker_entry(build)` first in the program's `main`, before anything else runs.",
    )
}

/// The error of a worker that died during an attempt.
fn died(verdict: &Verdict) -> ToolError {
    let signal = |signal: i32| match signal {
        4 => "SIGILL: illegal instruction",
        6 => "SIGABRT: aborted, perhaps out of memory",
        7 => "SIGBUS: invalid memory access",
        9 => "SIGKILL: killed, perhaps by the kernel for lack of memory",
        11 => "SIGSEGV: invalid memory access or stack overflow",
        _ => "a signal",
    };
    match verdict {
        Verdict::Signal { signal: number } => ToolError::dependency(format!(
            "the worker process of this call was killed by signal {number} ({})",
            signal(*number)
        ))
        .with("signal", *number),
        Verdict::Memory { limit } => ToolError::limit(format!(
            "the worker process of this call exceeded its limit of {} MiB memory",
            limit >> 20
        ))
        .suggest("Process less data at once, or raise the tool's `memory`.")
        .with("limit", *limit),
        Verdict::Processes { limit } => ToolError::limit(format!(
            "the worker process of this call exceeded its limit of {limit} processes"
        )),
        Verdict::Exit { code } => {
            ToolError::dependency(format!("the worker process of this call exited with status {code}"))
                .with("exit_code", *code)
        }
        Verdict::Ok => ToolError::dependency("the worker process of this call exited before its answer")
            .with("exit_code", 0),
        other => ToolError::dependency(format!("the worker process of this call ended: {other:?}")),
    }
}
