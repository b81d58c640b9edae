//! The program while it runs: lines in, lines out, and its end.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use toolpost_core::Secret;
use toolpost_sandbox::{Cancel, Outcome, Program, Running, Sandbox, Verdict};

use super::error::{ClaudeCodeError, ClaudeCodeErrorKind, foreign};

/// The longest line that is read, in bytes.
pub(super) const MAX_LINE: usize = 8 << 20;
/// How many lines wait until somebody reads them; the program stands still when there are more.
const WAITING: usize = 16;
/// How much of what the program writes to standard error is kept.
const KEPT: usize = 8 << 10;
/// How long a program that is told to end may take to do so.
const PATIENCE: Duration = Duration::from_secs(3);

/// A line of output, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Whole(Vec<u8>),
    /// A line of more than [`MAX_LINE`] bytes, which is passed over.
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

/// A program that runs. Dropped, it is killed with everything that it started.
pub(super) struct Process {
    running: Option<Running>,
    cancel: Cancel,
    input: Option<mpsc::Sender<Vec<u8>>>,
    lines: mpsc::Receiver<Line>,
    errors: Arc<Mutex<Vec<u8>>>,
    /// Ends when it writes nothing more to standard error.
    silence: Option<oneshot::Receiver<()>>,
    secrets: Vec<Secret>,
    container: Option<String>,
}

impl Process {
    /// Starts it and gives it the first lines of its input. What it says is scrubbed of the secrets.
    pub(super) async fn start(
        sandbox: Sandbox,
        program: Program,
        first: Vec<u8>,
        secrets: Vec<Secret>,
    ) -> Result<Self, ClaudeCodeError> {
        // Making a process blocks for milliseconds.
        let started = tokio::task::spawn_blocking(move || sandbox.start(&program)).await;
        let mut running = started.map_err(|error| lost(&error.to_string()))??;
        let (cancel, container) = (running.cancel(), running.container().map(str::to_owned));
        let directory = running.host_directory();
        let (Some(mut stdin), Some((stdout, mut stderr))) = (running.take_stdin(), running.take_output())
        else {
            return Err(lost("it has no streams"));
        };
        let (input, mut orders) = mpsc::channel::<Vec<u8>>(WAITING);
        let (sender, lines) = mpsc::channel(WAITING);
        let errors = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&errors);
        let (speaking, silence) = oneshot::channel::<()>();
        // A thread each: pipes block, and these last as long as the program.
        thread("claude input", move || {
            while let Some(order) = orders.blocking_recv() {
                // That nobody reads shows when the answer is waited for.
                if stdin.write_all(&order).and_then(|()| stdin.flush()).is_err() {
                    return;
                }
            }
        })?;
        thread("claude output", move || {
            let mut reader = BufReader::with_capacity(64 << 10, stdout);
            while let Some(line) = next_line(&mut reader, MAX_LINE) {
                // What its own tools changed is on the host before anybody hears of it, and what ours changed is shown.
                if ends_tool_use(&line) {
                    if let Err(error) = directory.apply() {
                        tracing::warn!("changes of Claude Code were not applied: {error}");
                    }
                    directory.refresh();
                }
                if sender.blocking_send(line).is_err() {
                    return;
                }
            }
        })?;
        thread("claude errors", move || {
            let _speaking = speaking;
            let mut piece = [0; 1 << 10];
            while let Ok(read @ 1..) = stderr.read(&mut piece) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(piece.get(..read).unwrap_or_default());
                let excess = kept.len().saturating_sub(KEPT);
                kept.drain(..excess);
            }
        })?;
        let (running, input, silence) = (Some(running), Some(input), Some(silence));
        let process = Self { running, cancel, input, lines, errors, silence, secrets, container };
        process.send(first).await?;
        Ok(process)
    }

    /// Writes bytes to its input. If it reads none any more, [`line`](Self::line) ends, and [`end`](Self::end) says why.
    pub(super) async fn send(&self, bytes: Vec<u8>) -> Result<(), ClaudeCodeError> {
        let Some(input) = &self.input else {
            return Err(ClaudeCodeError::new(
                ClaudeCodeErrorKind::Killed,
                "Claude Code reads no input any more",
            ));
        };
        let _ = input.send(bytes).await;
        Ok(())
    }

    /// What it writes next; `None` when it writes nothing more. Nothing is lost if the future is dropped.
    pub(super) async fn line(&mut self) -> Option<Line> {
        self.lines.recv().await
    }

    /// The id of the container that it runs in, if it runs in one.
    pub(super) fn container(&self) -> Option<&str> {
        self.container.as_deref()
    }

    /// What it wrote to standard error last, as one line.
    fn said(&self) -> String {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        foreign(&String::from_utf8_lossy(&errors), &self.secrets)
    }

    /// Kills it, and waits until it and everything that it started is dead.
    pub(super) async fn kill(&mut self) {
        self.cancel.cancel();
        self.input = None;
        if let Some(running) = self.running.take() {
            // If this future is dropped, the thread goes on.
            let _ = tokio::task::spawn_blocking(move || running.wait()).await;
        }
    }

    /// Ends its input, gives it a moment to end by itself, and waits until everything is dead. Says why it ended.
    pub(super) async fn end(&mut self) -> ClaudeCodeError {
        self.input = None;
        let drained = async { while self.lines.recv().await.is_some() {} };
        if tokio::time::timeout(PATIENCE, drained).await.is_err() {
            self.cancel.cancel();
        }
        let (running, cancel) = (self.running.take(), self.cancel.clone());
        let ended = tokio::task::spawn_blocking(move || {
            // Its streams have ended. If it goes on all the same, it is of no use any more.
            let late = std::thread::spawn(move || {
                std::thread::park_timeout(PATIENCE);
                cancel.cancel();
            });
            let outcome = running.map(Running::wait);
            late.thread().unpark();
            outcome
        });
        let ended = ended.await;
        if let Some(silence) = self.silence.take() {
            // What it said last says why, and may still be on its way. Others may hold the stream open.
            let _ = tokio::time::timeout(PATIENCE, silence).await;
        }
        match ended {
            Ok(Some(Ok(outcome))) => self.died(&outcome),
            Ok(Some(Err(error))) => error.into(),
            _ => lost("its exit status is unknown"),
        }
    }

    /// Why it is dead.
    fn died(&self, outcome: &Outcome) -> ClaudeCodeError {
        let said = self.said();
        let (kind, what) = match &outcome.verdict {
            Verdict::Memory { limit } => {
                (ClaudeCodeErrorKind::Limit, format!("needed more than its {} MiB of memory", limit >> 20))
            }
            Verdict::Processes { limit } => {
                (ClaudeCodeErrorKind::Limit, format!("wanted more than {limit} processes and threads"))
            }
            Verdict::Disk { limit } => {
                (ClaudeCodeErrorKind::Limit, format!("wrote more than {} MiB", limit >> 20))
            }
            Verdict::Signal { signal } => {
                (ClaudeCodeErrorKind::Killed, format!("was killed by signal {signal}"))
            }
            Verdict::Exit { code } => (ClaudeCodeErrorKind::Killed, format!("ended with status {code}")),
            Verdict::Denied { rule } => {
                (ClaudeCodeErrorKind::Sandbox, format!("was ended by the sandbox: {rule}"))
            }
            Verdict::Ok => (ClaudeCodeErrorKind::Killed, "ended".to_owned()),
            other => (ClaudeCodeErrorKind::Killed, format!("was ended: {other:?}")),
        };
        let said = if said.is_empty() { String::new() } else { format!("; it said: {said}") };
        ClaudeCodeError::new(
            kind,
            format!("the process of Claude Code {what} in the middle of its work{said}"),
        )
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(running) = self.running.take() else { return };
        self.cancel.cancel();
        // It is being killed; waiting for its end takes milliseconds, which are not the executor's.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(running));
        }
    }
}

fn lost(why: &str) -> ClaudeCodeError {
    ClaudeCodeError::new(
        ClaudeCodeErrorKind::Sandbox,
        format!("the process of Claude Code cannot be used: {why}"),
    )
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), ClaudeCodeError> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map(|_| ()).map_err(|error| lost(&format!("no thread could be started: {error}")))
}

/// The next line, of at most so many bytes; a longer one is read to its end and passed over. `None` at the end.
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
    fn lines_have_a_limit_and_the_next_one_is_whole_again() {
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
