//! The person at the terminal, as a tool sees them.

use std::collections::HashSet;
use std::io::{self, BufRead as _, IsTerminal as _};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use toolpost_core::{
    Answer, Artifact, ArtifactData, BoxFuture, CallId, Delivery, LogLine, Port, Progress, Question,
    QuestionKind, ToolError,
};

use crate::args::Permission;
use crate::print::Printer;
use crate::style::{STRONG, WARN, harmless, one_line, paint};
use crate::workspace::Store;

/// Answers questions on the terminal, if there is one, and puts files away. Progress and log lines reach the person
/// through events.
pub(crate) struct TerminalPort {
    printer: Printer,
    approve_all: bool,
    may_ask: bool,
    /// Tools that were approved for the rest of the run.
    approved: Mutex<HashSet<String>>,
    store: Option<Store>,
}

impl TerminalPort {
    pub(crate) fn new(printer: &Printer, permission: &Permission, store: Option<Store>) -> Self {
        let terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
        Self {
            printer: printer.clone(),
            approve_all: permission.yes,
            may_ask: terminal && !permission.no_input,
            approved: Mutex::default(),
            store,
        }
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

    fn artifact(&self, _call: CallId, artifact: Artifact) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async move {
            let Some(store) = &self.store else {
                return Err(ToolError::precondition("there is no place for files")
                    .suggest("Give one with `--artifacts DIR`."));
            };
            let stored = match &artifact.data {
                ArtifactData::Bytes(bytes) => store.put_bytes(&artifact.name, bytes),
                ArtifactData::Path(path) => store.put_file(&artifact.name, path),
                ArtifactData::Absent => return Ok(()),
            };
            stored.map(drop).map_err(|failure| ToolError::dependency(failure.message))
        })
    }

    fn ask<'a>(&'a self, _call: CallId, question: &'a Question) -> BoxFuture<'a, Result<Answer, ToolError>> {
        Box::pin(async move {
            let tool = match &question.kind {
                QuestionKind::Approval { tool, .. } => Some(tool.as_str()),
                _ => None,
            };
            let yes = || Ok(Answer::Given { value: true.into() });
            if let Some(tool) = tool {
                let approved = self.approved.lock().unwrap_or_else(PoisonError::into_inner).contains(tool);
                if self.approve_all || approved {
                    return yes();
                }
            }
            if !self.may_ask {
                return Err(ToolError::precondition("there is no terminal to ask on"));
            }
            let prompt = prompt(question);
            self.printer.prompt(&prompt)?;
            // Not a thread of the runtime: those are waited for at the end, and nobody may ever answer.
            let (answered, line) = tokio::sync::oneshot::channel();
            std::thread::spawn(move || answered.send(read_line()));
            let line = line.await??;
            let Some(tool) = tool else { return Ok(answer(&line, &question.kind)) };
            match line.as_str() {
                "y" | "yes" | "once" => yes(),
                "s" | "session" => {
                    self.approved.lock().unwrap_or_else(PoisonError::into_inner).insert(tool.to_owned());
                    yes()
                }
                _ => Ok(Answer::Declined),
            }
        })
    }
}

fn prompt(question: &Question) -> String {
    let message = harmless(&question.message);
    match &question.kind {
        QuestionKind::Approval { tool, arguments } => format!(
            "{} {}\n  {}\n  yes / session / no? ",
            paint(STRONG, "Approve"),
            paint(STRONG, one_line(tool, 80)),
            one_line(&arguments.to_string(), 400),
        ),
        // Whoever asks is not this command, and must not look like it.
        _ => {
            let lines: Vec<String> = message.lines().map(|line| format!("  │ {line}\n")).collect();
            format!("{}\n{}  answer: ", paint(WARN, "a tool asks:"), lines.concat())
        }
    }
}

fn read_line() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
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
