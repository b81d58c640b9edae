//! What a person says, from a line editor on a terminal, else a line at a time.

use std::io::{self, BufRead as _, Read as _, Write as _};
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
use crate::config::places;
use crate::failure::Failure;

/// What stands before what a person writes.
const PROMPT: &str = "> ";
/// The longest thing that is said at once, in bytes.
const MAX_SAID: u64 = 16 << 20;

/// What came.
pub(super) enum Said {
    Words(String),
    /// Ctrl-C, on a line with words or on an empty one.
    Interrupted {
        on_empty: bool,
    },
    End,
}

/// Where it comes from.
pub(super) enum Input {
    Terminal(Box<Lines>),
    Pipe,
}

pub(super) struct Lines {
    editor: Editor<Words, MemHistory>,
    history: History,
    was_empty: Arc<AtomicBool>,
}

impl Input {
    /// A line editor on a terminal; else the lines of standard input.
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
        let mut editor: Editor<Words, MemHistory> =
            Editor::with_history(config, MemHistory::new()).map_err(|error| wrong(&error))?;
        editor.set_helper(Some(Words::default()));
        editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
        let was_empty = Arc::new(AtomicBool::new(true));
        let looked = OnInterrupt(Arc::clone(&was_empty));
        editor.bind_sequence(KeyEvent::ctrl('C'), EventHandler::Conditional(Box::new(looked)));
        let history = History::open(places::history());
        for entry in history.entries() {
            // An entry that cannot be kept is one less to go back to.
            let _ = editor.add_history_entry(entry.as_str());
        }
        Ok(Self::Terminal(Box::new(Lines { editor, history, was_empty })))
    }

    /// What can be named after a command such as `/model`.
    pub(super) fn offer(&mut self, command: &'static str, names: Vec<String>) {
        if let Self::Terminal(lines) = self
            && let Some(words) = lines.editor.helper_mut()
        {
            words.offered.retain(|(known, _)| *known != command);
            words.offered.push((command, names));
        }
    }

    /// Waits for what is said next.
    pub(super) fn next(&mut self) -> Result<Said, Failure> {
        match self {
            Self::Terminal(lines) => lines.next(),
            Self::Pipe => {
                let mut line = Vec::new();
                let read = io::stdin().lock().take(MAX_SAID).read_until(b'\n', &mut line);
                let read = read.map_err(|error| Failure::of_machine("standard input", &error))?;
                if read == 0 {
                    return Ok(Said::End);
                }
                let line = String::from_utf8(line)
                    .map_err(|_| Failure::usage("a line of standard input is not UTF-8"))?;
                Ok(Said::Words(line.trim_end_matches(['\n', '\r']).to_owned()))
            }
        }
    }
}

impl Lines {
    fn next(&mut self) -> Result<Said, Failure> {
        match self.editor.readline(PROMPT) {
            Ok(line) => {
                let words = line.replace("\\\n", "\n");
                if !words.trim().is_empty() && self.history.add(&words) {
                    // Going back to it is a comfort and no more.
                    let _ = self.editor.add_history_entry(words.as_str());
                }
                Ok(Said::Words(words))
            }
            Err(ReadlineError::Interrupted) => {
                Ok(Said::Interrupted { on_empty: self.was_empty.load(Ordering::Relaxed) })
            }
            Err(ReadlineError::Eof) => {
                // The line that the editor was in is left.
                let _ = io::stdout().flush();
                Ok(Said::End)
            }
            Err(error) => Err(wrong(&error)),
        }
    }
}

fn wrong(error: &ReadlineError) -> Failure {
    Failure::new(crate::exit::Exit::Failed, "IO", format!("the line editor: {error}"))
}

/// Remembers whether there were words on the line that Ctrl-C has ended.
struct OnInterrupt(Arc<AtomicBool>);

impl ConditionalEventHandler for OnInterrupt {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext<'_>) -> Option<Cmd> {
        self.0.store(context.line().trim().is_empty(), Ordering::Relaxed);
        Some(Cmd::Interrupt)
    }
}

/// What the line editor knows of the words.
#[derive(Default)]
struct Words {
    offered: Vec<(&'static str, Vec<String>)>,
}

impl Completer for Words {
    type Candidate = String;

    fn complete(&self, line: &str, pos: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(completions(&self.offered, line.get(..pos).unwrap_or_default()))
    }
}

/// Where the word begins that is completed, and what it may become.
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

impl Validator for Words {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        // A line that ends in a backslash goes on.
        Ok(if context.input().ends_with('\\') {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

impl Hinter for Words {
    type Hint = String;
}

impl Highlighter for Words {}

impl Helper for Words {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_what_they_take_are_completed() {
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
