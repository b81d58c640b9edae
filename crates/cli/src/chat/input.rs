//! Input of a chat: a line editor on a terminal, else lines of standard input.

use std::io::{self, BufRead as _, Read as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Cmd, CompletionType, ConditionalEventHandler, Context, Editor, Event, EventContext, EventHandler, Helper,
    KeyCode, KeyEvent, Modifiers, RepeatCount,
};

use super::history::History;
use super::slash;
use crate::config::paths;
use crate::failure::Failure;
use crate::print;

/// The prompt.
const PROMPT: &str = "> ";
/// The maximum size of a message, in bytes.
const MAX_MESSAGE: u64 = 16 << 20;

/// An input event.
pub(super) enum InputEvent {
    Text(String),
    /// Ctrl-C, and whether the line was empty.
    Interrupted {
        on_empty: bool,
    },
    End,
}

/// The input of a chat.
pub(super) enum Input {
    Terminal(Box<Lines>),
    Pipe,
}

pub(super) struct Lines {
    editor: Editor<Completions, MemHistory>,
    history: History,
    was_empty: Arc<AtomicBool>,
}

impl Input {
    /// Opens a line editor on a terminal, else standard input.
    pub(super) fn open(is_terminal: bool) -> Result<Self, Failure> {
        if !is_terminal {
            return Ok(Self::Pipe);
        }
        let config = rustyline::Config::builder()
            .completion_type(CompletionType::List)
            .max_history_size(2000)
            .map_err(|error| wrong(&error))?
            .bracketed_paste(true)
            .build();
        let mut editor: Editor<Completions, MemHistory> =
            Editor::with_history(config, MemHistory::new()).map_err(|error| wrong(&error))?;
        editor.set_helper(Some(Completions::default()));
        editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
        let was_empty = Arc::new(AtomicBool::new(true));
        let looked = OnInterrupt(Arc::clone(&was_empty));
        editor.bind_sequence(KeyEvent::ctrl('C'), EventHandler::Conditional(Box::new(looked)));
        let history = History::open(paths::history());
        for entry in history.entries() {
            // An entry that the editor rejects is skipped.
            let _ = editor.add_history_entry(entry.as_str());
        }
        Ok(Self::Terminal(Box::new(Lines { editor, history, was_empty })))
    }

    /// Sets the completions of a command such as `/model`.
    pub(super) fn offer(&mut self, command: &'static str, names: Vec<String>) {
        if let Self::Terminal(lines) = self
            && let Some(words) = lines.editor.helper_mut()
        {
            words.offered.retain(|(known, _)| *known != command);
            words.offered.push((command, names));
        }
    }

    /// Waits for the next input.
    pub(super) fn next(&mut self) -> Result<InputEvent, Failure> {
        match self {
            Self::Terminal(lines) => lines.next(),
            Self::Pipe => {
                let mut line = Vec::new();
                let read = io::stdin().lock().take(MAX_MESSAGE).read_until(b'\n', &mut line);
                let read = read.map_err(|error| Failure::of_machine("standard input", &error))?;
                if read == 0 {
                    return Ok(InputEvent::End);
                }
                let line = String::from_utf8(line)
                    .map_err(|_| Failure::usage("a line of standard input is not UTF-8"))?;
                Ok(InputEvent::Text(line.trim_end_matches(['\n', '\r']).to_owned()))
            }
        }
    }
}

impl Lines {
    fn next(&mut self) -> Result<InputEvent, Failure> {
        match self.editor.readline(PROMPT) {
            Ok(line) => {
                let words = line.replace("\\\n", "\n");
                if !words.trim().is_empty() && self.history.add(&words) {
                    // A failure only affects the recall of lines.
                    let _ = self.editor.add_history_entry(words.as_str());
                }
                Ok(InputEvent::Text(words))
            }
            Err(ReadlineError::Interrupted) => {
                Ok(InputEvent::Interrupted { on_empty: self.was_empty.load(Ordering::Relaxed) })
            }
            Err(ReadlineError::Eof) => {
                // Leaves the line of the editor.
                let _ = print::raw(b"", false);
                Ok(InputEvent::End)
            }
            Err(error) => Err(wrong(&error)),
        }
    }
}

fn wrong(error: &ReadlineError) -> Failure {
    Failure::new(crate::exit::Exit::Failed, "IO", format!("the line editor: {error}"))
}

/// Stores whether the line was empty at Ctrl-C.
struct OnInterrupt(Arc<AtomicBool>);

impl ConditionalEventHandler for OnInterrupt {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext<'_>) -> Option<Cmd> {
        self.0.store(context.line().trim().is_empty(), Ordering::Relaxed);
        Some(Cmd::Interrupt)
    }
}

/// The completions of the line editor.
#[derive(Default)]
struct Completions {
    offered: Vec<(&'static str, Vec<String>)>,
}

impl Completer for Completions {
    type Candidate = String;

    fn complete(&self, line: &str, pos: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(completions(&self.offered, line.get(..pos).unwrap_or_default()))
    }
}

/// The start of the completed word, and its completions.
fn completions(offered: &[(&'static str, Vec<String>)], line: &str) -> (usize, Vec<String>) {
    let none = (line.len(), Vec::new());
    if !line.starts_with('/') {
        return none;
    }
    let Some((command, word)) = line.split_once(' ') else {
        let names = slash::COMMANDS.iter().map(|command| command.name).filter(|name| name.starts_with(line));
        return (0, names.map(str::to_owned).collect());
    };
    let Some((_, names)) = offered.iter().find(|(known, _)| *known == command) else { return none };
    let fitting = names.iter().filter(|name| name.starts_with(word)).cloned().collect();
    (line.len() - word.len(), fitting)
}

impl Validator for Completions {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        // A backslash continues the line.
        Ok(if context.input().ends_with('\\') {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

impl Hinter for Completions {
    type Hint = String;
}

impl Highlighter for Completions {}

impl Helper for Completions {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_arguments_are_completed() {
        let offered =
            [("/model", vec!["anthropic/a".to_owned(), "anthropic/b".to_owned(), "xai/c".to_owned()])];
        let of = |line: &str| completions(&offered, line);
        assert_eq!(of("/mod"), (0, vec!["/model".to_owned()]));
        assert_eq!(of("/model an"), (7, vec!["anthropic/a".to_owned(), "anthropic/b".to_owned()]));
        assert_eq!(of("/nosuch x").1, Vec::<String>::new());
        assert_eq!(of("say /mod").1, Vec::<String>::new());
        assert!(of("/").1.len() == slash::COMMANDS.len());
    }
}
