//! The person at the terminal, as a tool sees them.

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
use crate::print::Printer;
use crate::terminal::Screen;
use crate::workspace::Store;

/// The longest answer, in bytes.
const MAX_ANSWER: usize = 64 << 10;

/// How often an approval is asked for again after a word that is no answer; the next one declines.
const MOST_MISUNDERSTOOD: u32 = 3;

/// Answers questions on the terminal, if there is one, and puts files away. Progress and log lines reach the person
/// through events.
pub(crate) struct TerminalPort {
    printer: Printer,
    approve_all: bool,
    may_ask: bool,
    /// Tools that were approved for the rest of the run.
    approved: Mutex<HashSet<String>>,
    /// Who is asking.
    turn: tokio::sync::Mutex<()>,
    store: Option<Store>,
    /// What has the terminal while nobody is asked.
    screen: Option<Arc<Screen>>,
    stored: Option<Stored>,
    /// The questions of a session through a pipe.
    lines: Option<Lines>,
}

/// Where the files of calls were put.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stored(Arc<Mutex<HashMap<(CallId, String), PathBuf>>>);

impl Stored {
    fn add(&self, call: CallId, name: &str, path: PathBuf) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((call, name.to_owned()), path);
    }

    /// Takes the path of a file of a call.
    pub(crate) fn take(&self, call: CallId, name: &str) -> Option<PathBuf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&(call, name.to_owned()))
    }
}

impl TerminalPort {
    pub(crate) fn new(printer: &Printer, permission: &Permission, store: Option<Store>) -> Self {
        let terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
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

    /// The same, with the questions of a session as JSON Lines on standard output.
    pub(crate) fn over_lines(mut self) -> Self {
        self.lines = Some(Lines::default());
        self
    }

    /// The same, and records where files are put.
    pub(crate) fn recording(mut self, stored: &Stored) -> Self {
        self.stored = Some(stored.clone());
        self
    }

    /// The same on a terminal where something is drawn.
    pub(crate) fn on_screen(mut self, screen: Option<Arc<Screen>>) -> Self {
        self.screen = screen;
        self
    }

    /// The line that a person answers with.
    async fn answer_to(&self, prompt: &Prompt) -> Result<String, ToolError> {
        forget_typed();
        self.printer.prompt(&prompt.text)?;
        // Not a thread of the runtime: those are waited for at the end, and nobody may ever answer.
        let (answered, line) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let line = read_line(|| answered.is_closed());
            // Whoever asked may be gone.
            let _ = answered.send(line);
        });
        Ok(line.await??)
    }

    fn approvals(&self) -> MutexGuard<'_, HashSet<String>> {
        self.approved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Approves a tool from now on.
    pub(crate) fn approve(&self, tool: &str) {
        self.approvals().insert(tool.to_owned());
    }

    /// The tools that are approved from now on, in order.
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
                return Err(ToolError::precondition("there is no place for files")
                    .suggest("Give one with `--artifacts DIR`."));
            };
            let path = match &artifact.data {
                ArtifactData::Bytes(bytes) => store.put_bytes(&artifact.name, bytes),
                ArtifactData::Path(path) => store.put_file(&artifact.name, path),
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
                return Err(ToolError::precondition("there is no terminal to ask on"));
            }
            // One question at a time.
            let _turn = self.turn.lock().await;
            if let Some(tool) = tool
                && self.approvals().contains(tool)
            {
                return yes();
            }
            let _left = self.screen.as_ref().map(|screen| screen.leave());
            let mut prompt = Prompt::of(question, false);
            let mut misunderstood = 0;
            loop {
                let line = self.answer_to(&prompt).await?;
                if prompt.is_cut && matches!(line.as_str(), "show" | "show all" | "a" | "all") {
                    prompt = Prompt::of(question, true);
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
                    _ if misunderstood == MOST_MISUNDERSTOOD => return Ok(Answer::Declined),
                    _ => {
                        misunderstood += 1;
                        prompt = prompt.again();
                    }
                }
            }
        })
    }
}

/// Forgets what was typed on the terminal and nobody has read: whoever typed it had not seen the question.
#[cfg(unix)]
fn forget_typed() {
    use rustix::termios::{QueueSelector, tcflush};
    // A terminal that cannot forget still shows the question before its answer is taken.
    let _ = tcflush(rustix::stdio::stdin(), QueueSelector::IFlush);
}

#[cfg(not(unix))]
fn forget_typed() {}

/// A line of the terminal. If nobody waits for it any more, it is left for whoever reads next.
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
            // What is typed when nobody waits any more is for somebody else.
            Ok(_) if is_over() => break,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        // A terminal gives a line at most.
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

/// An answer to a tool's own question: nothing is no answer; JSON where the schema asks for something else than text.
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
