//! A process of a program, seen as lines.

use std::collections::VecDeque;
use std::io::{PipeReader, PipeWriter, Read, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use toolpost_core::{Masks, StartCheck, ToolError, has_more_values_than};
use toolpost_sandbox::{Cancel, HostDirectory, Outcome, Program, Running, Sandbox};

use super::program::of_sandbox;
use super::settings::Settings;
use crate::protocol::dialect::Notice;
use crate::protocol::line::{Line, LineBuffer, LineReader};

/// The longest line of standard error that can be a notification, in bytes.
const MAX_NOTIFICATION: usize = 64 << 10;
/// How much of the other text on standard error is kept: its end.
const KEPT: usize = 4 << 10;
/// How many lines are read ahead.
const AHEAD: usize = 16;
/// How many KiB of lines are read ahead; a single line may have as many as its own limit.
const AHEAD_KIB: usize = 4 << 10;
/// The most values in a line: each of them takes tens of bytes when it is read, however few it has as text.
pub(super) const MAX_VALUES: usize = 500_000;
/// How much is kept of a line with too many.
const START: usize = 256;
/// How many lines may wait for the program to read them.
const ANSWERS: usize = 8;

/// What a process tells.
#[derive(Debug)]
pub(super) enum Heard {
    /// A line of standard output.
    Line(Line),
    /// A notification of standard error.
    Notice(Notice),
}

/// A process. Dropped, it is killed with everything that it started.
#[derive(Debug)]
pub(super) struct Process {
    heard: mpsc::Receiver<(Heard, Option<OwnedSemaphorePermit>)>,
    /// The room for lines that nobody has taken yet.
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

/// A stream that ends when it has given more bytes than allowed.
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
    /// Starts a process whose lines have at most `line` bytes, and whose standard output and standard error have at most
    /// `total`.
    pub(super) async fn start(
        sandbox: Sandbox,
        program: Program,
        line: usize,
        total: [u64; 2],
        settings: &Settings,
    ) -> Result<Self, ToolError> {
        let (check, masks) = (settings.start_check.clone(), settings.masks.clone());
        // Making a sandbox blocks for a millisecond.
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
        let mut running = sandbox.start(program).map_err(of_sandbox)?;
        let (cancel, directory) = (running.cancel(), running.host_directory());
        let flooded = Arc::new(AtomicU64::new(0));
        let errors = Arc::new(Mutex::new(VecDeque::new()));
        let (sender, heard) = mpsc::channel(AHEAD);
        let room = Arc::new(Semaphore::new(AHEAD_KIB));
        if let Some((stdout, stderr)) = running.take_output() {
            let [most, most_errors] = total;
            let bounded = |stream, limit| Bounded {
                stream,
                left: limit,
                limit,
                flooded: Arc::clone(&flooded),
                cancel: cancel.clone(),
            };
            let mut lines = LineReader::new(bounded(stdout, most), line);
            let (to, room) = (sender.clone(), Arc::clone(&room));
            let line_masks = masks.clone();
            let runtime = tokio::runtime::Handle::current();
            thread("stdout", move || {
                while let Ok(Some(line)) = lines.next_line() {
                    let line = with_few_values(masked(line, &line_masks));
                    let (Line::Whole(text) | Line::TooLong { start: text }) = &line;
                    // Never more than there is, so that a long line waits until it is the only one.
                    let size = (text.len() >> 10).clamp(1, AHEAD_KIB) as u32;
                    let Ok(permit) = runtime.block_on(Arc::clone(&room).acquire_many_owned(size)) else {
                        return;
                    };
                    if to.blocking_send((Heard::Line(line), Some(permit))).is_err() {
                        return;
                    }
                }
            })?;
            let stderr = bounded(stderr, most_errors);
            let (kept, masks) = (Arc::clone(&errors), masks.clone());
            thread("stderr", move || listen(stderr, &sender, &kept, &masks))?;
        }
        let input = running.take_stdin();
        Ok(Self {
            heard,
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

    /// What it tells next; `None` when both of its streams have ended.
    pub(super) async fn next(&mut self) -> Option<Heard> {
        self.heard.recv().await.map(|(heard, _)| heard)
    }

    /// Writes a line to its standard input, without waiting for it to be read.
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
            _ => Err(ToolError::dependency("the program asks and does not read the answers")),
        }
    }

    /// Ends its standard input.
    pub(super) fn close_input(&mut self) {
        self.input = None;
        self.writer = None;
    }

    /// Kills it.
    pub(super) fn kill(&self) {
        self.cancel.cancel();
    }

    /// Shows it what others changed in its host directory.
    pub(super) async fn refresh(&self) {
        let directory = self.directory.clone();
        let _ = tokio::task::spawn_blocking(move || directory.refresh()).await;
    }

    /// Applies what it changed in its host directory.
    pub(super) async fn apply(&self) -> Result<(), ToolError> {
        let directory = self.directory.clone();
        tokio::task::spawn_blocking(move || directory.apply()).await?.map(drop).map_err(of_sandbox)
    }

    /// Whether it is dead already.
    pub(super) fn is_finished(&self) -> bool {
        self.running.as_ref().is_none_or(Running::is_finished)
    }

    /// The limit, in bytes, for which it was killed because it printed more.
    pub(super) fn flooded(&self) -> Option<u64> {
        Some(self.flooded.load(Ordering::Relaxed)).filter(|limit| *limit > 0)
    }

    /// The end of what it wrote to standard error, notifications aside.
    pub(super) fn errors(&self) -> Vec<u8> {
        let errors: Vec<u8> =
            self.errors.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        if errors.len() < KEPT { self.masks.bytes(errors) } else { self.masks.tail(errors) }
    }

    /// Waits until it and everything that it started is dead.
    pub(super) async fn end(mut self) -> Result<Outcome, ToolError> {
        self.close_input();
        let Some(running) = self.running.take() else {
            return Err(ToolError::internal("the process ended twice"));
        };
        // If this future is dropped, `self` is, and the process dies all the same.
        tokio::task::spawn_blocking(move || running.wait()).await?.map_err(of_sandbox)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.room.close();
        let Some(running) = self.running.take() else { return };
        // It is being killed; waiting for its end takes milliseconds, which are not the executor's.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(running));
        }
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), ToolError> {
    match std::thread::Builder::new().name(name.to_owned()).spawn(work) {
        Ok(_) => Ok(()),
        Err(error) => Err(ToolError::overloaded(format!("no thread could be started: {error}"))),
    }
}

/// The line without secrets.
fn masked(line: Line, masks: &Masks) -> Line {
    match line {
        Line::Whole(line) => Line::Whole(masks.bytes(line)),
        Line::TooLong { start } => Line::TooLong { start: masks.bytes(start) },
    }
}

/// The line, or only its beginning if it has too many values to be read.
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

/// Reads standard error: notifications are told, of everything else the end is kept.
fn listen(
    mut stream: Bounded,
    sender: &mpsc::Sender<(Heard, Option<OwnedSemaphorePermit>)>,
    kept: &Mutex<VecDeque<u8>>,
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
        // Most programs write no notifications, some write much: their text is not taken apart.
        if read > 0 && !is_within && !text.contains(&b'{') {
            keep(kept, text);
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
                    if sender.blocking_send((Heard::Notice(notice), None)).is_err() {
                        return;
                    }
                }
                (None, Line::Whole(mut text) | Line::TooLong { start: mut text }) => {
                    text.push(b'\n');
                    keep(kept, &text);
                }
            }
        }
        if read == 0 {
            return;
        }
    }
}

fn keep(kept: &Mutex<VecDeque<u8>>, text: &[u8]) {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    kept.extend(text.get(text.len().saturating_sub(KEPT)..).unwrap_or_default());
    let excess = kept.len().saturating_sub(KEPT);
    kept.drain(..excess);
}
