//! A chat: `toolpost chat` and `toolpost run --interactive`.

mod commands;
mod history;
mod input;
mod slash;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;
use toolpost_core::{Clock as _, Event, EventSink, RunId, RunRecord, SystemClock, Usage};

use self::input::{Input, InputEvent};
use crate::agent_options::AgentOptions;
use crate::agent_session::AgentSession;
use crate::args::AgentArgs;
use crate::artifacts::{UnstoredFiles, unstored_notices};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::hosted::{self, Uploads};
use crate::interrupt::{Turns, unless};
use crate::outcome::{exit_of, print_artifacts, print_record};
use crate::print::{Printer, Stream};
use crate::progress;
use crate::run_files::RunFiles;
use crate::style::{FAINT, HINT, STRONG, harmless, one_line, paint};
use crate::terminal::{Screen, draw};

/// The name of the upload in a cancellation error.
const UPLOAD: &str = "the upload of attachments";

/// Chats until the user leaves.
pub(crate) fn start(
    given: &AgentArgs,
    first: Option<String>,
    config: &Config,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let runtime = crate::runtime::start()?;
    let options = runtime.block_on(AgentOptions::resolve(given, config, printer))?;
    let files = RunFiles::open(&options.args, &options.config, printer)?;
    let screen = Screen::new(printer, options.args.plain);
    let last = Arc::new(Mutex::new(Usage::default()));
    let events = overheard(progress::sink_of(printer, screen.clone()), &last);
    let memory = &options.memory;
    let session = AgentSession::open(&options, &files, screen, events, config, printer);
    let mut session = runtime.block_on(session)?;
    let turns = runtime.block_on(async { Turns::watch() })?;
    let is_terminal = io::stdin().is_terminal() && Stream::Stdout.is_terminal() && printer.is_text();
    let mut input = Input::open(is_terminal)?;
    let names = || session.parts.toolbox.specs().iter().map(|spec| spec.name.clone()).collect();
    input.offer("/resume", runtime.block_on(memory.ids())?);
    input.offer("/tools", names());
    input.offer("/approve", names());
    if let Some(screen) = &session.screen {
        runtime.spawn(draw(Arc::clone(screen)));
    }
    let stop = turns.begin();
    let given = session.upload(&*session.model, session.place.as_ref());
    let given = runtime.block_on(unless(&stop, UPLOAD, given))?;
    turns.end();
    session.announce(given);
    if is_terminal {
        printer.note(&paint(
            FAINT,
            format!("{} · /help lists commands, Ctrl-D leaves", harmless(&session.model.id().to_string())),
        ));
    }
    session.note_place();
    let mut chat = Chat {
        is_ours: session.conversation.exchanges().is_empty(),
        session,
        last,
        interrupts: turns,
        usage: Usage::default(),
        cost: Some(0.0),
        latest: None,
        is_lost: false,
        next_id: Some(files.id),
        given_to: BTreeMap::new(),
        handle: runtime.handle().clone(),
    };
    chat.note_resumed();
    let ended = chat.run(&mut input, first, is_terminal);
    if is_terminal && memory.runs.is_some() && !chat.session.conversation.exchanges().is_empty() {
        let id = chat.session.conversation.id();
        chat.note(&paint(FAINT, format!("`toolpost chat --resume {id}` resumes")));
    }
    crate::runtime::end(runtime);
    // All work in the directory has ended.
    drop(chat);
    let mut made = RunRecord::begin(files.id, String::new(), SystemClock.timestamp());
    files.collect(&mut made, printer).settle(ended, printer)
}

/// Wraps a sink that also stores the usage of the last answer.
fn overheard(sink: EventSink, last: &Arc<Mutex<Usage>>) -> EventSink {
    let last = Arc::clone(last);
    Arc::new(move |event| {
        if let Event::TurnFinished { usage, .. } = event {
            last.lock().unwrap_or_else(PoisonError::into_inner).clone_from(usage);
        }
        sink(event);
    })
}

/// A chat.
struct Chat<'a> {
    session: AgentSession<'a>,
    /// Whether this chat owns the conversation, so that /undo may delete it.
    is_ours: bool,
    last: Arc<Mutex<Usage>>,
    interrupts: Turns,
    usage: Usage,
    /// The cost, while all prices are known.
    cost: Option<f64>,
    /// The record of the latest turn, unless it was undone.
    latest: Option<Arc<RunRecord>>,
    /// Whether the latest question failed and was discarded.
    is_lost: bool,
    /// The ID of the first run, which names the artifact directory.
    next_id: Option<RunId>,
    /// Uploads for providers of earlier models that no prompt has used.
    given_to: BTreeMap<String, Uploads>,
    handle: Handle,
}

/// Whether the chat continues after a command.
enum Next {
    Goes,
    Ends,
}

impl Chat<'_> {
    fn run(
        &mut self,
        input: &mut Input,
        mut first: Option<String>,
        is_terminal: bool,
    ) -> Result<Exit, Failure> {
        let mut exit = Exit::Ok;
        let mut interrupted = false;
        loop {
            let event = match first.take() {
                Some(words) => InputEvent::Text(words),
                None => input.next()?,
            };
            let words = match event {
                InputEvent::End => return Ok(if is_terminal { Exit::Ok } else { exit }),
                InputEvent::Interrupted { on_empty } => {
                    if on_empty && interrupted {
                        return Ok(Exit::Ok);
                    }
                    interrupted = on_empty;
                    if on_empty {
                        self.note(&paint(FAINT, "Press Ctrl-C again or Ctrl-D to leave."));
                    }
                    continue;
                }
                InputEvent::Text(words) => words,
            };
            interrupted = false;
            if words.trim().is_empty() {
                continue;
            }
            // A path such as `/etc/hosts` is not a command.
            let is_command = words.starts_with('/')
                && words.split(char::is_whitespace).next().is_none_or(|word| word.matches('/').count() <= 1);
            if is_command {
                let stop = self.interrupts.begin();
                match self.command(&words, &stop) {
                    Ok(Next::Ends) => return Ok(if is_terminal { Exit::Ok } else { exit }),
                    Ok(Next::Goes) => {}
                    Err(failure) => exit = self.session.printer.failure(&failure),
                }
                if self.interrupts.end() {
                    return Ok(Exit::Interrupted);
                }
                continue;
            }
            match self.turn(words) {
                Ok(()) => {}
                Err(failure) => exit = self.session.printer.failure(&failure),
            }
            if self.interrupts.end() {
                return Ok(Exit::Interrupted);
            }
        }
    }

    /// Prints a note beside the conversation.
    fn note(&self, text: &str) {
        self.session.printer.note(text);
    }

    /// Prints the title of a resumed conversation.
    fn note_resumed(&self) {
        let summary = self.session.conversation.summary();
        if summary.prompts > 0 {
            let said = crate::outcome::count(summary.prompts, "question");
            let title = one_line(&summary.title, 80);
            self.note(&format!(
                "{} {} {}",
                paint(HINT, "resumed:"),
                title,
                paint(FAINT, format!("({said})"))
            ));
        }
    }

    /// Sends one message and prints the answer.
    fn turn(&mut self, words: String) -> Result<(), Failure> {
        self.is_lost = false;
        let before = self.session.conversation.exchanges().len();
        let had = hosted::hosted_files(&self.session.conversation.turns());
        let given = std::mem::take(&mut self.session.given);
        let stop = self.interrupts.begin();
        let mut run = self.session.run(words, &given).with_cancellation(stop.clone());
        if let Some(id) = self.next_id.take() {
            run = run.with_id(id);
        }
        let (outcome, mut record) = self.handle.block_on(async {
            let outcome = run.finish().await;
            let record = self.session.record(&outcome, &had, &stop).await;
            (outcome, record)
        });
        let unstored = unstored_notices(&record.tool_calls, &UnstoredFiles::default());
        for notice in &unstored {
            self.session.printer.warn(notice);
        }
        record.notices.extend(unstored);
        let made = record.artifacts.get(outcome.record.artifacts.len()..).unwrap_or_default();
        let is_amended = !made.is_empty() || record.notices.len() > outcome.record.notices.len();
        let amended = is_amended.then(|| self.handle.block_on(self.session.options.memory.amend(&record)));
        let shown = self.session.screen.as_ref().map(|screen| screen.settle());
        self.count(&outcome.record.usage, outcome.record.cost_usd);
        self.latest = Some(Arc::clone(&outcome.record));
        let window = self.window_left();
        print_artifacts(made, self.session.printer);
        amended.flatten().iter().for_each(|notice| self.session.printer.warn(notice));
        let is_result = outcome.stop.is_answer() || progress::has_final_text(&record);
        print_record(record, is_result, shown.as_deref(), window, self.session.printer)?;
        // A failed question is discarded, so that repeating it does not send it twice.
        if outcome.error.is_some() && outcome.record.tool_calls.is_empty() {
            self.rewind(before)?;
            self.session.given = given;
            self.is_lost = true;
            self.note("the question failed and was discarded; send it again to retry");
        }
        match exit_of(&outcome) {
            // The user knows that the answer was stopped.
            Err(failure) if failure.exit == Exit::Interrupted => {
                self.note(&paint(STRONG, "stopped; the beginning of the answer is stored"));
                Ok(())
            }
            other => other.map(drop),
        }
    }

    fn count(&mut self, usage: &Usage, cost: Option<f64>) {
        self.usage.add(usage);
        self.cost = match (self.cost, cost) {
            (Some(all), Some(more)) => Some(all + more),
            _ => None,
        };
    }

    /// The rest of the model's context window, if known.
    fn window_left(&self) -> Option<String> {
        let window = self.session.model.info()?.context_window.filter(|window| *window > 0)?;
        let used = self.last.lock().unwrap_or_else(PoisonError::into_inner).total_tokens();
        let left = window.saturating_sub(used).saturating_mul(100) / window;
        (used > 0).then(|| format!("{left} % of the context left"))
    }

    /// Returns the conversation to its state after so many questions.
    fn rewind(&mut self, questions: usize) -> Result<(), Failure> {
        let all = self.session.conversation.exchanges().len();
        if questions >= all {
            return Ok(());
        }
        let old = self.session.conversation.id();
        let conversations = &self.session.options.memory.conversations;
        self.session.conversation = match questions {
            0 => self.session.options.memory.create(),
            _ => self.handle.block_on(conversations.fork(old, Some(questions)))?,
        };
        if std::mem::replace(&mut self.is_ours, true) {
            self.handle.block_on(conversations.delete(old))?;
        }
        Ok(())
    }
}
