//! One worker process, as the process that started it sees it.

use std::ffi::OsString;
use std::io::Read as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use toolpost_core::{RetryAdvice, ToolError, format_duration};
use toolpost_sandbox::{Cancel, Limits, Program, Running, Sandbox, Verdict, Workspace};

use super::frame::{OrderFrame, Report, ReportFrame};
use super::{MARKER, Settings};
use crate::protocol::frame::ToolMessage;
use crate::protocol::line::{Line, MAX_LINE};
use crate::server::{Inlet, Outlet};

/// How much of what a worker writes to standard error is kept.
const KEPT: usize = 4 << 10;
/// How many lines a program may print before it says that it is ready.
const PREAMBLE: usize = 64;
/// A worker lives as long as it is needed: each call has its own limit of time.
const LIFETIME: Duration = Duration::from_hours(24 * 365);

/// A process that is ready for an attempt, or at one. Dropped, it is killed with everything that it started.
pub(super) struct Worker {
    running: Option<Running>,
    cancel: Cancel,
    input: Outlet,
    output: Inlet,
    errors: Arc<Mutex<Vec<u8>>>,
    /// The memory that it may have.
    pub(super) memory: u64,
    /// The number of its next attempt.
    pub(super) next: u64,
    /// Counts it as long as it lives.
    _counted: Counted,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("running", &self.running).finish_non_exhaustive()
    }
}

/// One of so many.
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
    /// Starts one and waits until it is ready.
    pub(super) async fn start(settings: &Settings, memory: u64, counted: Counted) -> Result<Self, ToolError> {
        let sandbox = sandbox(settings, memory);
        let line =
            std::iter::once(settings.program.clone().into_os_string()).chain(settings.arguments.clone());
        let program = Program::argv(line.collect::<Vec<OsString>>());
        // Making a process blocks for a millisecond.
        let mut worker =
            tokio::task::spawn_blocking(move || Self::start_blocking(&sandbox, &program, memory, counted))
                .await??;
        match tokio::time::timeout(settings.start, worker.ready()).await {
            Ok(Ok(())) => Ok(worker),
            Ok(Err(())) => {
                let why = worker.end().await;
                Err(no_hook(settings, "it ended before it was ready").with("ended", why.message()))
            }
            Err(_) => {
                worker.kill().await;
                let limit = format_duration(settings.start);
                Err(no_hook(settings, &format!("it was not ready within {limit}")))
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
            ToolError::dependency(format!("no worker process could be started: {error}"))
                .suggest_maybe(hint)
                .caused_by(error)
        };
        let mut running = sandbox.start(program).map_err(failed)?;
        let cancel = running.cancel();
        let errors = Arc::new(Mutex::new(Vec::new()));
        let (Some(input), Some((output, mut stderr))) = (running.take_stdin(), running.take_output()) else {
            return Err(ToolError::internal("a worker process has no streams"));
        };
        let kept = Arc::clone(&errors);
        let read = move || {
            let mut piece = [0; 1 << 10];
            while let Ok(read @ 1..) = stderr.read(&mut piece) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(piece.get(..read).unwrap_or_default());
                let excess = kept.len().saturating_sub(KEPT);
                kept.drain(..excess);
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

    /// Waits for the first frame. What the program prints before it takes its output for itself is passed over.
    async fn ready(&mut self) -> Result<(), ()> {
        for _ in 0..PREAMBLE {
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
    /// `LIMIT` if it is too large. That nobody reads it shows when the answer is waited for.
    pub(super) async fn send(&self, frame: &OrderFrame) -> Result<(), ToolError> {
        let line = frame.to_line()?;
        if line.len() > MAX_LINE {
            return Err(ToolError::limit(format!(
                "{} bytes of JSON; between processes go 32 MiB",
                line.len()
            ))
            .suggest("Write what is large to a file, and give its path."));
        }
        self.input.send(line).await;
        Ok(())
    }

    /// What it says next; `None` if it says nothing more, or what makes no sense.
    pub(super) async fn next_report(&self) -> Option<ReportFrame> {
        match self.output.line().await? {
            Line::Whole(line) => ReportFrame::read(&line).ok(),
            Line::TooLong { .. } => None,
        }
    }

    /// Kills it, and waits until it and everything that it started is dead.
    pub(super) async fn kill(mut self) {
        self.cancel.cancel();
        if let Some(running) = self.running.take() {
            // If this future is dropped, the thread goes on.
            let _ = tokio::task::spawn_blocking(move || running.wait()).await;
        }
    }

    /// Why it said nothing more, when it and everything that it started is dead.
    pub(super) async fn end(mut self) -> ToolError {
        let running = self.running.take();
        let cancel = self.cancel.clone();
        let ended = tokio::task::spawn_blocking(move || {
            // Its streams have ended. If it goes on all the same, it is of no use any more.
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
            _ => ToolError::dependency("the worker process ended, and nobody knows how"),
        };
        let said = String::from_utf8_lossy(&errors).into_owned();
        let died = if said.trim().is_empty() { died } else { died.with("stderr", json!(said)) };
        died.retry(RetryAdvice::Never)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let Some(running) = self.running.take() else { return };
        self.cancel.cancel();
        // It is being killed; waiting for its end takes milliseconds, which are not the executor's.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(running));
        }
    }
}

fn sandbox(settings: &Settings, memory: u64) -> Sandbox {
    // Trusted as this process is: only the memory is a limit, and that all of it dies.
    let limits = Limits::default()
        .with_wall(LIFETIME)
        .with_memory(memory)
        .with_processes(4096)
        .with_descriptors(4096)
        .with_file_size(1 << 50);
    let mut sandbox =
        Sandbox::unconfined().limits(limits).workspace(Workspace::Host(settings.folder.clone()));
    for (name, value) in &settings.environment {
        // Asked one by one: what the sandbox refuses is left out.
        if Sandbox::new().env(name, value).check_settings().is_ok() {
            sandbox = sandbox.env(name, value);
        }
    }
    sandbox.env(MARKER, settings.program.as_os_str())
}

fn no_hook(settings: &Settings, what: &str) -> ToolError {
    ToolError::precondition(format!("`{}` was started as a worker, but {what}", settings.program.display()))
        .suggest(
            "Call `toolpost::worker_entry(build)` first in the program's `main`, before anything else runs.",
        )
}

/// How a worker died in the middle of an attempt.
fn died(verdict: &Verdict) -> ToolError {
    let signal = |signal: i32| match signal {
        4 => "SIGILL: an instruction that is none",
        6 => "SIGABRT: it aborted, out of memory perhaps",
        7 => "SIGBUS: memory that is not there",
        9 => "SIGKILL: somebody killed it, the kernel perhaps for want of memory",
        11 => "SIGSEGV: memory that is not its own, or a stack overflow",
        _ => "a signal",
    };
    match verdict {
        Verdict::Signal { signal: number } => ToolError::dependency(format!(
            "the worker process of this call died of signal {number} ({})",
            signal(*number)
        ))
        .with("signal", *number),
        Verdict::Memory { limit } => ToolError::limit(format!(
            "the worker process of this call needed more than its {} MiB of memory",
            limit >> 20
        ))
        .suggest("Do less at once, or raise the tool's `memory`.")
        .with("limit", *limit),
        Verdict::Processes { limit } => {
            ToolError::limit(format!("the worker process of this call wanted more than {limit} processes"))
        }
        Verdict::Exit { code } => {
            ToolError::dependency(format!("the worker process of this call exited with status {code}"))
                .with("exit_code", *code)
        }
        Verdict::Ok => ToolError::dependency("the worker process of this call exited in the middle of it")
            .with("exit_code", 0),
        other => ToolError::dependency(format!("the worker process of this call ended: {other:?}")),
    }
}
