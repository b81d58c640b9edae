//! The process of Claude Code: its input, its output lines, and its end.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use toolpost_core::Secret;
use toolpost_sandbox::{Cancel, Outcome, Program, Running, Sandbox, Verdict};

use super::error::{ClaudeCodeError, ClaudeCodeErrorKind as Kind, redact};

/// Bytes of a line.
const MAX_LINE: usize = 8 << 20;
/// Queued lines. A full queue blocks the program.
const MAX_QUEUED: usize = 16;
/// Bytes of standard error that are stored.
const MAX_STDERR: usize = 8 << 10;
/// Time for the program to end by itself.
const END_TIMEOUT: Duration = Duration::from_secs(3);

/// A line of output, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Whole(Vec<u8>),
    /// A line of more than [`MAX_LINE`] bytes, which is dropped.
    TooLong,
}

/// Whether a line is the result of a tool, or of the whole task.
fn ends_tool_use(line: &Line) -> bool {
    let Line::Whole(line) = line else { return true };
    let start = line.get(..64).unwrap_or(line);
    [&b"\"type\":\"user\""[..], b"\"type\":\"result\""]
        .iter()
        .any(|kind| start.windows(kind.len()).any(|window| window == *kind))
}

/// A running program. Dropping it kills it with all its children.
pub(super) struct Process {
    running: Option<Running>,
    cancel: Cancel,
    input: Option<mpsc::Sender<Vec<u8>>>,
    lines: mpsc::Receiver<Line>,
    errors: Arc<Mutex<Vec<u8>>>,
    /// Resolves when standard error is closed.
    stderr_closed: Option<oneshot::Receiver<()>>,
    secrets: Vec<Secret>,
    container: Option<String>,
}

impl Process {
    /// Starts the program with the first lines of its input. Error texts are redacted.
    pub(super) async fn start(
        sandbox: Sandbox,
        program: Program,
        first: Vec<u8>,
        secrets: Vec<Secret>,
    ) -> Result<Self, ClaudeCodeError> {
        // Starting a process blocks for milliseconds.
        let started = tokio::task::spawn_blocking(move || sandbox.start(&program)).await;
        let mut running = started.map_err(|error| failed(&error.to_string()))??;
        let (cancel, container) = (running.cancel(), running.container().map(str::to_owned));
        let directory = running.host_directory();
        let (Some(mut stdin), Some((stdout, mut stderr))) = (running.take_stdin(), running.take_output())
        else {
            return Err(failed("its streams are missing"));
        };
        let (input, mut orders) = mpsc::channel::<Vec<u8>>(MAX_QUEUED);
        let (sender, lines) = mpsc::channel(MAX_QUEUED);
        let errors = Arc::new(Mutex::new(Vec::new()));
        let stored = Arc::clone(&errors);
        let (open, stderr_closed) = oneshot::channel::<()>();
        // Pipes block as long as the program runs, so each has a thread.
        thread("claude input", move || {
            while let Some(order) = orders.blocking_recv() {
                // The reader of the output reports a closed input.
                if stdin.write_all(&order).and_then(|()| stdin.flush()).is_err() {
                    return;
                }
            }
        })?;
        thread("claude output", move || {
            let mut reader = BufReader::with_capacity(64 << 10, stdout);
            while let Some(line) = next_line(&mut reader, MAX_LINE) {
                // Apply changes of its tools before their result is reported, and show changes of connected tools.
                if ends_tool_use(&line) {
                    if let Err(error) = directory.apply() {
                        tracing::warn!("applying changes of Claude Code failed: {error}");
                    }
                    directory.refresh();
                }
                if sender.blocking_send(line).is_err() {
                    return;
                }
            }
        })?;
        thread("claude errors", move || {
            let _open = open;
            let mut piece = [0; 1 << 10];
            while let Ok(read @ 1..) = stderr.read(&mut piece) {
                let mut stored = stored.lock().unwrap_or_else(PoisonError::into_inner);
                stored.extend_from_slice(piece.get(..read).unwrap_or_default());
                let excess = stored.len().saturating_sub(MAX_STDERR);
                stored.drain(..excess);
            }
        })?;
        let (running, input, stderr_closed) = (Some(running), Some(input), Some(stderr_closed));
        let process = Self { running, cancel, input, lines, errors, stderr_closed, secrets, container };
        process.send(first).await?;
        Ok(process)
    }

    /// Writes to the input. If it is closed, [`line`](Self::line) ends, and [`end`](Self::end) has the reason.
    pub(super) async fn send(&self, bytes: Vec<u8>) -> Result<(), ClaudeCodeError> {
        let Some(input) = &self.input else {
            return Err(Kind::Killed.error("the input of Claude Code is closed"));
        };
        let _ = input.send(bytes).await;
        Ok(())
    }

    /// The next line of output; `None` at the end. Dropping the future loses no line.
    pub(super) async fn line(&mut self) -> Option<Line> {
        self.lines.recv().await
    }

    /// The id of the container, if the program runs in one.
    pub(super) fn container(&self) -> Option<&str> {
        self.container.as_deref()
    }

    /// The end of standard error, as one line.
    fn stderr(&self) -> String {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        redact(&String::from_utf8_lossy(&errors), &self.secrets)
    }

    /// Kills the program and its children, and waits for their end.
    pub(super) async fn kill(&mut self) {
        self.cancel.cancel();
        self.input = None;
        if let Some(running) = self.running.take() {
            // The thread continues if this future is dropped.
            let _ = tokio::task::spawn_blocking(move || running.wait()).await;
        }
    }

    /// Closes the input and waits for the end; kills the program after 3 s. Returns the reason of the end.
    pub(super) async fn end(&mut self) -> ClaudeCodeError {
        self.input = None;
        let drained = async { while self.lines.recv().await.is_some() {} };
        if tokio::time::timeout(END_TIMEOUT, drained).await.is_err() {
            self.cancel.cancel();
        }
        let (running, cancel) = (self.running.take(), self.cancel.clone());
        let ended = tokio::task::spawn_blocking(move || {
            // Without streams, a program that continues is useless.
            let late = std::thread::spawn(move || {
                std::thread::park_timeout(END_TIMEOUT);
                cancel.cancel();
            });
            let outcome = running.map(Running::wait);
            late.thread().unpark();
            outcome
        });
        let ended = ended.await;
        if let Some(stderr_closed) = self.stderr_closed.take() {
            // The last text has the reason. A child may hold the stream open.
            let _ = tokio::time::timeout(END_TIMEOUT, stderr_closed).await;
        }
        match ended {
            Ok(Some(Ok(outcome))) => self.died(&outcome),
            Ok(Some(Err(error))) => error.into(),
            _ => failed("its exit status is unknown"),
        }
    }

    /// The error for an outcome.
    fn died(&self, outcome: &Outcome) -> ClaudeCodeError {
        let (kind, end) = match &outcome.verdict {
            Verdict::Memory { limit } => {
                (Kind::Limit, format!("exceeded its limit of {} MiB of memory", limit >> 20))
            }
            Verdict::Processes { limit } => (Kind::Limit, format!("exceeded its limit of {limit} processes")),
            Verdict::Disk { limit } => {
                (Kind::Limit, format!("exceeded its limit of {} MiB on disk", limit >> 20))
            }
            Verdict::Signal { signal } => (Kind::Killed, format!("was killed by signal {signal}")),
            Verdict::Exit { code } => (Kind::Killed, format!("ended with exit status {code}")),
            Verdict::Denied { rule } => (Kind::Sandbox, format!("was ended by the sandbox: {rule}")),
            Verdict::Ok => (Kind::Killed, "ended".to_owned()),
            other => (Kind::Killed, format!("was ended: {other:?}")),
        };
        let stderr = self.stderr();
        let stderr =
            if stderr.is_empty() { stderr } else { format!("; its last output on stderr: {stderr}") };
        kind.error(format!("the process of Claude Code {end}{stderr}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(running) = self.running.take() else { return };
        self.cancel.cancel();
        // Waiting for the end takes milliseconds, so it must not block the runtime.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(running));
        }
    }
}

fn failed(reason: &str) -> ClaudeCodeError {
    Kind::Sandbox.error(format!("the process of Claude Code failed: {reason}"))
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), ClaudeCodeError> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map(|_| ()).map_err(|error| failed(&format!("starting a thread failed: {error}")))
}

/// The next line, of at most `limit` bytes; a longer one is dropped. `None` at the end.
fn next_line(reader: &mut BufReader<impl Read>, limit: usize) -> Option<Line> {
    let mut line = Vec::new();
    let mut is_too_long = false;
    loop {
        let available = reader.fill_buf().ok()?;
        if available.is_empty() {
            return (!line.is_empty() && !is_too_long).then_some(Line::Whole(line));
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let piece = available.get(..end.unwrap_or(available.len())).unwrap_or_default();
        is_too_long |= line.len() + piece.len() > limit;
        if is_too_long {
            line = Vec::new();
        } else {
            line.extend_from_slice(piece);
        }
        let used = end.map_or(available.len(), |end| end + 1);
        reader.consume(used);
        if end.is_some() {
            return Some(if is_too_long { Line::TooLong } else { Line::Whole(line) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_beyond_the_limit_is_dropped() {
        let text = format!("a\n\n{}\nb\n{}", "x".repeat(100), "y".repeat(10));
        for capacity in [1, 7, 1000] {
            let mut reader = BufReader::with_capacity(capacity, text.as_bytes());
            let lines: Vec<Line> = std::iter::from_fn(|| next_line(&mut reader, 10)).collect();
            let whole = |text: &str| Line::Whole(text.as_bytes().to_vec());
            assert_eq!(lines, [whole("a"), whole(""), Line::TooLong, whole("b"), whole("yyyyyyyyyy")]);
        }
        let mut endless = BufReader::new(std::io::repeat(b'x').take(1 << 20));
        assert_eq!(next_line(&mut endless, 10), None);
    }
}
