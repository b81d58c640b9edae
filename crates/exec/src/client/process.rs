//! A running program as a stream of lines.

use std::collections::VecDeque;
use std::io::{PipeReader, PipeWriter, Read, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use toolpost_core::{Masks, StartCheck, ToolError, has_more_values_than};
use toolpost_sandbox::{Applied, Cancel, HostDirectory, Outcome, Program, Running, Sandbox};

use super::settings::Settings;
use crate::failure;
use crate::protocol::dialect::Notice;
use crate::protocol::line::{Line, LineBuffer, LineReader};

/// Maximum length of a notification on stderr, in bytes.
const MAX_NOTIFICATION: usize = 64 << 10;
/// Retained end of the other text on stderr, in bytes.
const MAX_ERRORS: usize = 4 << 10;
/// The number of lines that are read ahead.
const AHEAD: usize = 16;
/// The KiB of lines that are read ahead; one longer line is read alone.
const AHEAD_KIB: usize = 4 << 10;
/// Maximum number of JSON values in a line, which bounds its memory.
pub(super) const MAX_VALUES: usize = 500_000;
/// Retained start of a line with too many values, in bytes.
const START: usize = 256;
/// The maximum number of lines that wait for the program to read them.
const ANSWERS: usize = 8;

/// An event of a process.
#[derive(Debug)]
pub(super) enum ProcessEvent {
    /// A line of standard output.
    Line(Line),
    /// A notification on stderr.
    Notice(Notice),
}

/// A process. Dropping it kills it and its children.
#[derive(Debug)]
pub(super) struct Process {
    events: mpsc::Receiver<(ProcessEvent, Option<OwnedSemaphorePermit>)>,
    /// Permits for lines that are not read yet.
    room: Arc<Semaphore>,
    input: Option<PipeWriter>,
    writer: Option<SyncSender<Vec<u8>>>,
    running: Option<Running>,
    directory: HostDirectory,
    cancel: Cancel,
    errors: Arc<Mutex<VecDeque<u8>>>,
    masks: Masks,
    flooded: Arc<AtomicU64>,
}

/// A stream that cancels the process after a maximum of bytes.
struct Bounded {
    stream: PipeReader,
    left: u64,
    limit: u64,
    flooded: Arc<AtomicU64>,
    cancel: Cancel,
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.stream.read(buffer)?;
        match self.left.checked_sub(read as u64) {
            Some(left) => {
                self.left = left;
                Ok(read)
            }
            None => {
                self.flooded.store(self.limit, Ordering::Relaxed);
                self.cancel.cancel();
                Ok(0)
            }
        }
    }
}

impl Process {
    /// Starts a process with lines of at most `line` bytes, and with a limit for standard output and for stderr.
    pub(super) async fn start(
        sandbox: Sandbox,
        program: Program,
        line: usize,
        total: [u64; 2],
        settings: &Settings,
    ) -> Result<Self, ToolError> {
        let (check, masks) = (settings.start_check.clone(), settings.masks.clone());
        // Starting a process blocks for about a millisecond.
        let start = move || Self::start_blocking(&sandbox, &program, line, total, check.as_ref(), masks);
        tokio::task::spawn_blocking(start).await?
    }

    fn start_blocking(
        sandbox: &Sandbox,
        program: &Program,
        line: usize,
        total: [u64; 2],
        check: Option<&StartCheck>,
        masks: Masks,
    ) -> Result<Self, ToolError> {
        check.map_or(Ok(()), StartCheck::check)?;
        let mut running = sandbox.start(program).map_err(failure::of_sandbox)?;
        let (cancel, directory) = (running.cancel(), running.host_directory());
        let flooded = Arc::new(AtomicU64::new(0));
        let errors = Arc::new(Mutex::new(VecDeque::new()));
        let (sender, events) = mpsc::channel(AHEAD);
        let room = Arc::new(Semaphore::new(AHEAD_KIB));
        if let Some((stdout, stderr)) = running.take_output() {
            let [max, max_errors] = total;
            let bounded = |stream, limit| Bounded {
                stream,
                left: limit,
                limit,
                flooded: Arc::clone(&flooded),
                cancel: cancel.clone(),
            };
            let mut lines = LineReader::new(bounded(stdout, max), line);
            let (to, room) = (sender.clone(), Arc::clone(&room));
            let line_masks = masks.clone();
            let runtime = tokio::runtime::Handle::current();
            thread("stdout", move || {
                while let Ok(Some(line)) = lines.next_line() {
                    let line = with_few_values(masked(line, &line_masks));
                    let (Line::Whole(text) | Line::TooLong { start: text }) = &line;
                    // At most all permits, so that a long line waits until it is the only one.
                    let size = (text.len() >> 10).clamp(1, AHEAD_KIB) as u32;
                    let Ok(permit) = runtime.block_on(Arc::clone(&room).acquire_many_owned(size)) else {
                        return;
                    };
                    if to.blocking_send((ProcessEvent::Line(line), Some(permit))).is_err() {
                        return;
                    }
                }
            })?;
            let stderr = bounded(stderr, max_errors);
            let (tail, masks) = (Arc::clone(&errors), masks.clone());
            thread("stderr", move || read_stderr(stderr, &sender, &tail, &masks))?;
        }
        let input = running.take_stdin();
        Ok(Self {
            events,
            room,
            input,
            writer: None,
            running: Some(running),
            directory,
            cancel,
            errors,
            masks,
            flooded,
        })
    }

    /// The next event; `None` when both streams have ended.
    pub(super) async fn next(&mut self) -> Option<ProcessEvent> {
        self.events.recv().await.map(|(event, _)| event)
    }

    /// Queues a line for its standard input.
    pub(super) fn write(&mut self, mut line: Vec<u8>) -> Result<(), ToolError> {
        line.push(b'\n');
        if let Some(mut input) = self.input.take() {
            let (sender, lines) = sync_channel::<Vec<u8>>(ANSWERS);
            thread("stdin", move || {
                while let Ok(line) = lines.recv() {
                    if input.write_all(&line).is_err() {
                        return;
                    }
                }
            })?;
            self.writer = Some(sender);
        }
        let sent = self.writer.as_ref().map(|writer| writer.try_send(line));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(ToolError::dependency("the program asks but does not read the answers")),
        }
    }

    /// Closes its standard input.
    pub(super) fn close_input(&mut self) {
        self.input = None;
        self.writer = None;
    }

    /// Kills the process.
    pub(super) fn kill(&self) {
        self.cancel.cancel();
    }

    /// Makes others' changes of its host directory visible to it.
    pub(super) async fn refresh(&self) {
        let directory = self.directory.clone();
        let _ = tokio::task::spawn_blocking(move || directory.refresh()).await;
    }

    /// Applies its changes of its host directory. None if nothing is applied now.
    pub(super) async fn apply(&self) -> Result<Option<Applied>, ToolError> {
        let directory = self.directory.clone();
        tokio::task::spawn_blocking(move || directory.apply()).await?.map_err(failure::of_sandbox)
    }

    /// Has exited.
    pub(super) fn is_finished(&self) -> bool {
        self.running.as_ref().is_none_or(Running::is_finished)
    }

    /// The output limit, in bytes, that it exceeded.
    pub(super) fn flooded(&self) -> Option<u64> {
        Some(self.flooded.load(Ordering::Relaxed)).filter(|limit| *limit > 0)
    }

    /// The end of its stderr, without notifications.
    pub(super) fn errors(&self) -> Vec<u8> {
        let errors: Vec<u8> =
            self.errors.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        if errors.len() < MAX_ERRORS { self.masks.bytes(errors) } else { self.masks.tail(errors) }
    }

    /// Waits for the exit of the process and its children.
    pub(super) async fn end(mut self) -> Result<Outcome, ToolError> {
        self.close_input();
        let Some(running) = self.running.take() else {
            return Err(ToolError::internal("the process ended twice"));
        };
        // If this future is dropped, `self` is dropped and kills the process.
        tokio::task::spawn_blocking(move || running.wait()).await?.map_err(failure::of_sandbox)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.room.close();
        let Some(running) = self.running.take() else { return };
        // Waiting for its end takes milliseconds and must not block the executor.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(running));
        }
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), ToolError> {
    match std::thread::Builder::new().name(name.to_owned()).spawn(work) {
        Ok(_) => Ok(()),
        Err(error) => Err(ToolError::overloaded(format!("cannot start a thread: {error}"))),
    }
}

/// Masks secrets in a line.
fn masked(line: Line, masks: &Masks) -> Line {
    match line {
        Line::Whole(line) => Line::Whole(masks.bytes(line)),
        Line::TooLong { start } => Line::TooLong { start: masks.bytes(start) },
    }
}

/// Drops a line with too many values, except its start.
fn with_few_values(line: Line) -> Line {
    match line {
        Line::Whole(mut line) if has_more_values_than(&line, MAX_VALUES) => {
            line.truncate(START);
            line.shrink_to_fit();
            Line::TooLong { start: line }
        }
        line => line,
    }
}

/// Reads stderr: forwards notifications and retains the end of the other text.
fn read_stderr(
    mut stream: Bounded,
    sender: &mpsc::Sender<(ProcessEvent, Option<OwnedSemaphorePermit>)>,
    tail: &Mutex<VecDeque<u8>>,
    masks: &Masks,
) {
    let mut buffer = LineBuffer::new(MAX_NOTIFICATION);
    let mut piece = vec![0; 64 << 10];
    let mut is_within = false;
    loop {
        let read = match stream.read(&mut piece) {
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => 0,
        };
        let text = piece.get(..read).unwrap_or_default();
        // Fast path: text without a brace cannot hold a notification.
        if read > 0 && !is_within && !text.contains(&b'{') {
            append(tail, text);
            continue;
        }
        buffer.feed(text);
        is_within = text.last() != Some(&b'\n');
        while let Some(line) = if read == 0 { buffer.finish() } else { buffer.next_line() } {
            let line = masked(line, masks);
            let notice = match &line {
                Line::Whole(line) if line.starts_with(b"{") => {
                    serde_json::from_slice(line).ok().and_then(|line| Notice::from_notification(&line))
                }
                _ => None,
            };
            match (notice, line) {
                (Some(notice), _) => {
                    if sender.blocking_send((ProcessEvent::Notice(notice), None)).is_err() {
                        return;
                    }
                }
                (None, Line::Whole(mut text) | Line::TooLong { start: mut text }) => {
                    text.push(b'\n');
                    append(tail, &text);
                }
            }
        }
        if read == 0 {
            return;
        }
    }
}

fn append(tail: &Mutex<VecDeque<u8>>, text: &[u8]) {
    let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
    tail.extend(text.get(text.len().saturating_sub(MAX_ERRORS)..).unwrap_or_default());
    let excess = tail.len().saturating_sub(MAX_ERRORS);
    tail.drain(..excess);
}
