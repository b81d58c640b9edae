//! Non-blocking input: a thread that starts with the first read.

use std::io::Read;
use std::sync::{Mutex, PoisonError};

use tokio::sync::mpsc;

use super::input;
use crate::protocol::line::{Line, LineReader, MAX_LINE};
use toolpost_core::ToolError;

/// The number of lines that are read ahead, each up to [`MAX_LINE`].
const AHEAD: usize = 4;

/// Standard input.
pub(crate) struct Inlet {
    stream: Mutex<Option<Box<dyn Read + Send>>>,
    lines: tokio::sync::Mutex<Option<mpsc::Receiver<Line>>>,
}

impl Inlet {
    pub(crate) fn new(stream: Box<dyn Read + Send>) -> Self {
        Self { stream: Mutex::new(Some(stream)), lines: tokio::sync::Mutex::new(None) }
    }

    fn take(&self) -> Option<Box<dyn Read + Send>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The next line; `None` at the end of the input or after an error.
    pub(crate) async fn line(&self) -> Option<Line> {
        let mut lines = self.lines.lock().await;
        if lines.is_none() {
            let stream = self.take()?;
            let (sender, receiver) = mpsc::channel(AHEAD);
            let read = move || {
                let mut reader = LineReader::new(stream, MAX_LINE);
                while let Ok(Some(line)) = reader.next_line() {
                    if sender.blocking_send(line).is_err() {
                        return;
                    }
                }
            };
            std::thread::Builder::new().name("inlet".into()).spawn(read).ok()?;
            *lines = Some(receiver);
        }
        lines.as_mut()?.recv().await
    }

    /// The whole input as the arguments of a call.
    pub(super) fn whole(&self) -> Result<String, ToolError> {
        match self.take() {
            Some(stream) => input::read_bounded(stream, "standard input"),
            None => Err(ToolError::invalid_input("standard input can be read only once")),
        }
    }
}
