//! The user at the terminal, as the port of tools.

mod lines;
mod prompt;

use std::collections::{HashMap, HashSet};
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use toolpost_core::{
    Answer, Artifact, ArtifactData, BoxFuture, CallId, Delivery, LogLine, Port, Progress, Question,
    QuestionKind, ToolError,
};

use self::lines::Lines;
use self::prompt::Prompt;
use crate::args::Permission;
use crate::exit::Exit;
use crate::print::{Printer, Stream};
use crate::terminal::{self, Prompted};
use crate::workspace::Store;

/// The maximum length of an answer, in bytes.
const MAX_ANSWER: usize = 64 << 10;

/// The maximum number of repeated approval prompts after an unknown answer; the next one declines.
const MAX_UNKNOWN_ANSWERS: u32 = 3;

/// Answers prompts on the terminal, if there is one, and stores artifacts. Events carry progress and log lines.
pub(crate) struct TerminalPort {
    printer: Printer,
    approve_all: bool,
    may_ask: bool,
    /// Tools that are approved for the rest of the run.
    approved: Mutex<HashSet<String>>,
    /// The name of the asking tool.
    turn: tokio::sync::Mutex<()>,
    store: Option<Store>,
    /// The drawing on the terminal between prompts.
    screen: Option<Arc<dyn Prompted>>,
    stored: Option<Stored>,
    /// The prompts of a session through a pipe.
    lines: Option<Lines>,
}

/// The paths of stored artifacts of calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stored(Arc<Mutex<HashMap<(CallId, String), PathBuf>>>);

impl Stored {
    fn add(&self, call: CallId, name: &str, path: PathBuf) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((call, name.to_owned()), path);
    }

    /// Takes the path of an artifact of a call.
    pub(crate) fn take(&self, call: CallId, name: &str) -> Option<PathBuf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&(call, name.to_owned()))
    }
}

impl TerminalPort {
    pub(crate) fn new(printer: &Printer, permission: &Permission, store: Option<Store>) -> Self {
        let terminal = io::stdin().is_terminal() && Stream::Stderr.is_terminal();
        Self {
            printer: printer.clone(),
            approve_all: permission.yes,
            may_ask: terminal && !permission.no_input,
            approved: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            store,
            screen: None,
            stored: None,
            lines: None,
        }
    }

    /// Answers session prompts as JSON Lines on standard output.
    pub(crate) fn over_lines(mut self) -> Self {
        self.lines = Some(Lines::default());
        self
    }

    /// Records the paths of stored artifacts.
    pub(crate) fn recording(mut self, stored: &Stored) -> Self {
        self.stored = Some(stored.clone());
        self
    }

    /// Shares the terminal with what draws on it.
    pub(crate) fn on_screen(mut self, screen: Option<Arc<impl Prompted + 'static>>) -> Self {
        self.screen = screen.map(|screen| screen as Arc<dyn Prompted>);
        self
    }

    /// Reads an answer from the terminal.
    async fn answer_to(&self, prompt: &Prompt) -> Result<String, ToolError> {
        forget_typed();
        self.printer.prompt(&prompt.text)?;
        // A plain thread: the runtime waits for its own threads at the end, and no answer may ever come.
        let (answered, line) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let line = read_line(|| answered.is_closed());
            // The caller may be gone.
            let _ = answered.send(line);
        });
        Ok(line.await??)
    }

    fn approvals(&self) -> MutexGuard<'_, HashSet<String>> {
        self.approved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Approves a tool for the rest of the run.
    pub(crate) fn approve(&self, tool: &str) {
        self.approvals().insert(tool.to_owned());
    }

    /// The approved tools in order.
    pub(crate) fn approved(&self) -> Vec<String> {
        let mut approved: Vec<String> = self.approvals().iter().cloned().collect();
        approved.sort();
        approved
    }
}

impl Port for TerminalPort {
    fn progress(&self, _call: CallId, _progress: Progress) -> Delivery {
        Delivery::Delivered
    }

    fn log(&self, _call: CallId, _line: LogLine) -> Delivery {
        Delivery::Delivered
    }

    fn takes_artifacts(&self) -> bool {
        self.store.is_some()
    }

    fn artifact(&self, call: CallId, artifact: Artifact) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async move {
            let Some(store) = &self.store else {
                return Err(ToolError::precondition("there is no artifact directory")
                    .suggest("Add `--artifacts DIR`."));
            };
            let path = match &artifact.data {
                ArtifactData::Bytes(bytes) => store.store_bytes(&artifact.name, bytes),
                ArtifactData::Path(path) => store.store_file(&artifact.name, path),
                ArtifactData::Absent => return Ok(()),
            };
            let path = path.map_err(|failure| match failure.exit {
                Exit::Denied => ToolError::permission(failure.message),
                _ => ToolError::dependency(failure.message),
            })?;
            if let Some(stored) = &self.stored {
                stored.add(call, &artifact.name, path);
            }
            Ok(())
        })
    }

    fn ask<'a>(&'a self, _call: CallId, question: &'a Question) -> BoxFuture<'a, Result<Answer, ToolError>> {
        Box::pin(async move {
            let tool = match &question.kind {
                QuestionKind::Approval { tool, .. } => Some(tool.as_str()),
                _ => None,
            };
            let yes = || Ok(Answer::Given { value: true.into() });
            if tool.is_some_and(|tool| self.approve_all || self.approvals().contains(tool)) {
                return yes();
            }
            if let (Some(lines), None) = (&self.lines, tool) {
                let _turn = self.turn.lock().await;
                return lines.ask(question).await;
            }
            if !self.may_ask {
                return Err(ToolError::precondition("there is no terminal for a prompt"));
            }
            // One prompt at a time.
            let _turn = self.turn.lock().await;
            if let Some(tool) = tool
                && self.approvals().contains(tool)
            {
                return yes();
            }
            let _left = self.screen.as_ref().map(terminal::leave);
            let mut prompt = Prompt::new(question, false);
            let mut misunderstood = 0;
            loop {
                let line = self.answer_to(&prompt).await?;
                if prompt.is_cut && matches!(line.as_str(), "show" | "show all" | "a" | "all") {
                    prompt = Prompt::new(question, true);
                    continue;
                }
                let Some(tool) = tool else { return Ok(answer(&line, &question.kind)) };
                match line.to_lowercase().as_str() {
                    "y" | "yes" | "once" => return yes(),
                    "s" | "session" => {
                        self.approve(tool);
                        return yes();
                    }
                    "" | "n" | "no" => return Ok(Answer::Declined),
                    _ if misunderstood == MAX_UNKNOWN_ANSWERS => return Ok(Answer::Declined),
                    _ => {
                        misunderstood += 1;
                        prompt = prompt.again();
                    }
                }
            }
        })
    }
}

/// Discards unread input: it was typed before the prompt.
#[cfg(unix)]
fn forget_typed() {
    use rustix::termios::{QueueSelector, tcflush};
    // A terminal without this call still shows the prompt first.
    let _ = tcflush(rustix::stdio::stdin(), QueueSelector::IFlush);
}

#[cfg(not(unix))]
fn forget_typed() {}

/// Reads a line of the terminal. If the caller is gone, the line stays for the next reader.
#[cfg(unix)]
pub(crate) fn read_line(is_over: impl Fn() -> bool) -> io::Result<String> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;
    let stdin = rustix::stdio::stdin();
    let often = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let mut line = Vec::new();
    while !is_over() {
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&often)) {
            Ok(0) | Err(Errno::INTR) => continue,
            // Input after that belongs to the next reader.
            Ok(_) if is_over() => break,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        // A terminal returns at most one line.
        let mut piece = [0; 4096];
        let read = rustix::io::read(stdin, &mut piece)?;
        line.extend_from_slice(piece.get(..read).unwrap_or_default());
        if read == 0 || line.ends_with(b"\n") || line.len() > MAX_ANSWER {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&line).trim().to_owned())
}

/// A line of the terminal.
#[cfg(not(unix))]
pub(crate) fn read_line(_is_over: impl Fn() -> bool) -> io::Result<String> {
    use std::io::{BufRead as _, Read as _};
    let mut line = String::new();
    io::stdin().lock().take(MAX_ANSWER as u64).read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

/// The answer to a question of a tool: JSON unless its schema is a string; nothing is not an answer.
fn answer(line: &str, kind: &QuestionKind) -> Answer {
    if line.is_empty() {
        return Answer::Declined;
    }
    let wants_text = match kind {
        QuestionKind::Input { schema: Some(schema) } => {
            schema.get("type").is_none_or(|kind| kind == "string")
        }
        _ => true,
    };
    let value = if wants_text {
        Value::from(line)
    } else {
        serde_json::from_str(line).unwrap_or_else(|_| line.into())
    };
    Answer::Given { value }
}
