//! A chat: `toolpost chat` and `toolpost run --interactive`.

mod commands;
mod history;
mod input;
mod slash;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};
use tokio::runtime::Handle;
use toolpost_agent::{Agent, Conversation};
use toolpost_core::{Event, EventSink, RunId, RunRecord, Scope, Usage};
use toolpost_llm::{Model, ModelSpec, Part, Turn};
use toolpost_sandbox::Level;

use self::input::{Input, InputEvent};
use crate::agent::{Parts, workspace};
use crate::args::AgentArgs;
use crate::artifacts::{UnstoredFiles, artifacts, store, store_files, unstored_notices};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::held_changes;
use crate::hosted::{self, Place, Uploads};
use crate::interrupt::{Turns, unless};
use crate::memory::Memory;
use crate::model::{Tape, model};
use crate::outcome::{exit_of, print_artifacts, print_record};
use crate::port::TerminalPort;
use crate::print::{Printer, Stream};
use crate::style::{FAINT, HINT, STRONG, harmless, one_line, paint};
use crate::terminal::{Screen, draw};
use crate::workspace::Workspace;
use crate::{env, progress};

/// The name of the upload in a cancellation error.
const UPLOAD: &str = "the upload of attachments";

/// Chats until the user leaves.
pub(crate) fn start(
    work: &AgentArgs,
    first: Option<String>,
    config: &Config,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let (model, spec) = model(work, config)?;
    let tags = config.object("tags");
    let id = RunId::new();
    let mut workspace = workspace(work, config, printer)?;
    let store = store(work, config, &workspace, id);
    let runtime = crate::runtime::start()?;
    let screen = Screen::new(printer, work.plain);
    let memory = Memory::open(work, config)?;
    memory.warm(&runtime);
    let last = Arc::new(Mutex::new(Usage::default()));
    let events = overheard(progress::sink_of(printer, screen.clone()), &last);
    let conversation = runtime.block_on(memory.begin(work))?;
    let parts = runtime.block_on(Parts::open(work, config, &workspace, events, printer))?;
    let turns = runtime.block_on(async { Turns::watch() })?;
    let is_terminal = io::stdin().is_terminal() && Stream::Stdout.is_terminal() && printer.is_text();
    let mut input = Input::open(is_terminal)?;
    input.offer("/resume", runtime.block_on(memory.ids())?);
    input.offer("/tools", parts.toolbox.specs().iter().map(|spec| spec.name.clone()).collect());
    input.offer("/approve", parts.toolbox.specs().iter().map(|spec| spec.name.clone()).collect());
    // The first write: only the conversation itself can fail after it.
    let tape = Tape::open(work)?;
    let owner = env::get("USER").unwrap_or_else(|| "operator".into());
    let port = TerminalPort::new(printer, &work.permission, store.clone()).on_screen(screen.clone());
    if let Some(screen) = &screen {
        runtime.spawn(draw(Arc::clone(screen)));
    }
    let agent = parts.agent(Arc::clone(&model), &tape)?;
    let place = parts.code_place(&*model)?;
    let stop = turns.begin();
    let given = hosted::upload(work, place.as_ref(), &*model, &workspace, config, printer);
    let mut given = runtime.block_on(unless(&stop, UPLOAD, given))?;
    turns.end();
    if !work.enable_file_support {
        given.notices.iter().for_each(|notice| printer.warn(notice));
    }
    let left_out = workspace.omissions();
    if let Some(notice) = &left_out {
        printer.warn(notice);
    }
    given.notices.extend(left_out);
    let mut chat = Chat {
        parts: &parts,
        config,
        printer,
        tape,
        agent,
        model,
        is_ours: conversation.exchanges().is_empty(),
        conversation,
        memory: &memory,
        scope: Scope::new(owner).with_working_dir(workspace.path()),
        port: Arc::new(port),
        screen,
        last,
        interrupts: turns,
        usage: Usage::default(),
        cost: Some(0.0),
        latest: None,
        is_lost: false,
        level: work.permission.level.or_else(|| config.choice("level")),
        next_id: Some(id),
        place,
        work,
        workspace: &workspace,
        given_to: BTreeMap::new(),
        given,
        artifacts: artifacts(work, config, id),
        tags,
        handle: runtime.handle().clone(),
    };
    if matches!(spec, ModelSpec::Script(_)) {
        chat.note(&format!(
            "{} the answers are scripted; the tools, the sandbox and the numbers are real",
            paint(HINT, "script:")
        ));
    }
    if is_terminal {
        chat.note(&paint(
            FAINT,
            format!("{} · /help lists commands, Ctrl-D leaves", harmless(&chat.model.id().to_string())),
        ));
    }
    chat.note_place();
    chat.note_resumed();
    let ended = chat.run(&mut input, first, is_terminal);
    if is_terminal && memory.runs.is_some() && !chat.conversation.exchanges().is_empty() {
        let id = chat.conversation.id();
        chat.note(&paint(FAINT, format!("`toolpost chat --resume {id}` resumes")));
    }
    crate::runtime::end(runtime);
    // All work in the directory has ended.
    drop(chat);
    drop(parts);
    let is_interrupted = matches!(ended, Ok(Exit::Interrupted));
    let allowed = &work.permission.directory.allow_protected;
    let settled = workspace
        .finish()
        .and_then(|changes| held_changes::settle(changes, allowed, is_interrupted, printer));
    if let (Err(_), Err(failure)) = (&ended, &settled) {
        printer.warn(&failure.message);
    }
    let mut made = Vec::new();
    let put = store.map_or(Ok(UnstoredFiles::default()), |store| store_files(&workspace, &store, &mut made));
    print_artifacts(&made, printer);
    for notice in unstored_notices(&[], put.as_ref().unwrap_or(&UnstoredFiles::default())) {
        printer.warn(&notice);
    }
    crate::workspace::clear_stale();
    match put {
        Err(failure) => {
            Err(failure.hint(format!("The files are still in `{}`.", workspace.preserve().display())))
        }
        Ok(_) => ended.and_then(|exit| settled.map(|()| exit)),
    }
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
    parts: &'a Parts<'a>,
    config: &'a Config,
    printer: &'a Printer,
    tape: Tape,
    agent: Agent,
    model: Arc<dyn Model>,
    conversation: Conversation,
    /// Whether this chat owns the conversation, so that /undo may delete it.
    is_ours: bool,
    memory: &'a Memory,
    scope: Scope,
    port: Arc<TerminalPort>,
    screen: Option<Arc<Screen>>,
    last: Arc<Mutex<Usage>>,
    interrupts: Turns,
    usage: Usage,
    /// The cost, while all prices are known.
    cost: Option<f64>,
    /// The record of the latest turn, unless it was undone.
    latest: Option<Arc<RunRecord>>,
    /// Whether the latest question failed and was discarded.
    is_lost: bool,
    /// The sandbox level of the option or the setting.
    level: Option<Level>,
    /// The ID of the first run, which names the artifact directory.
    next_id: Option<RunId>,
    /// Where `code_execution` runs, if it is among the tools.
    place: Option<Place>,
    work: &'a AgentArgs,
    workspace: &'a Workspace,
    /// Uploads for providers of earlier models that no prompt has used.
    given_to: BTreeMap<String, Uploads>,
    /// Uploads for the next prompt.
    given: Uploads,
    /// The directory for files of hosted code.
    artifacts: PathBuf,
    /// The metadata of usage events.
    tags: Map<String, Value>,
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
            // A path such as `/etc/hosts` is no command.
            let is_command = words.starts_with('/')
                && words.split(char::is_whitespace).next().is_none_or(|word| word.matches('/').count() <= 1);
            if is_command {
                let stop = self.interrupts.begin();
                match self.command(&words, &stop) {
                    Ok(Next::Ends) => return Ok(if is_terminal { Exit::Ok } else { exit }),
                    Ok(Next::Goes) => {}
                    Err(failure) => exit = self.printer.failure(&failure),
                }
                if self.interrupts.end() {
                    return Ok(Exit::Interrupted);
                }
                continue;
            }
            match self.turn(words) {
                Ok(()) => {}
                Err(failure) => exit = self.printer.failure(&failure),
            }
            if self.interrupts.end() {
                return Ok(Exit::Interrupted);
            }
        }
    }

    /// Prints a note beside the conversation.
    fn note(&self, text: &str) {
        self.printer.note(text);
    }

    fn note_place(&self) {
        if let Some(place) = &self.place {
            self.note(&format!("{} {}", paint(HINT, "code:"), place.notice));
        }
    }

    /// Prints the title of a resumed conversation.
    fn note_resumed(&self) {
        let summary = self.conversation.summary();
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
        let before = self.conversation.exchanges().len();
        let had = hosted::hosted_files(&self.conversation.turns());
        let given = std::mem::take(&mut self.given);
        let stop = self.interrupts.begin();
        let said = std::iter::once(Part::text(words)).chain(given.parts.iter().cloned()).collect();
        let mut run = self
            .conversation
            .run_turn(&self.agent, Turn::User(said))
            .with_caller(crate::toolbox::caller())
            .with_values(crate::agent_tool::values(&self.tape))
            .with_usage_metadata(self.tags.clone())
            .with_scope(self.scope.clone().with_id(self.conversation.id()))
            .with_port(Arc::clone(&self.port) as Arc<dyn toolpost_core::Port>)
            .with_cancellation(stop.clone());
        for notice in self.place.iter().map(|place| &place.notice).chain(&given.notices) {
            run = run.with_notice(notice.as_str());
        }
        if let Some(runs) = &self.memory.runs {
            run = run.persist_to(runs);
        }
        if let Some(id) = self.next_id.take() {
            run = run.with_id(id);
        }
        if let Some(screen) = &self.screen {
            screen.begin();
        }
        let outcome = self.handle.block_on(run.finish());
        let fetched = hosted::fetch(&outcome.turns, &had, &self.artifacts, self.config, &stop);
        let fetched = self.handle.block_on(fetched);
        let mut record = RunRecord::clone(&outcome.record);
        let unstored = unstored_notices(&record.tool_calls, &UnstoredFiles::default());
        let notices: Vec<String> = fetched.notices.into_iter().chain(unstored).collect();
        record.artifacts.extend(fetched.artifacts.iter().cloned());
        record.notices.extend(notices.iter().cloned());
        let storage_warning = if fetched.artifacts.is_empty() && notices.is_empty() {
            None
        } else {
            self.handle.block_on(self.memory.amend(&record))
        };
        let shown = self.screen.as_ref().map(|screen| screen.settle());
        self.count(&outcome.record.usage, outcome.record.cost_usd);
        self.latest = Some(Arc::clone(&outcome.record));
        let window = self.window_left();
        print_artifacts(&fetched.artifacts, self.printer);
        for notice in notices.iter().chain(&storage_warning) {
            self.printer.warn(notice);
        }
        let is_result = outcome.stop.is_answer() || progress::has_final_text(&record);
        print_record(record, is_result, shown.as_deref(), window, self.printer)?;
        // A failed question is discarded, so that repeating it does not send it twice.
        if outcome.error.is_some() && outcome.record.tool_calls.is_empty() {
            self.rewind(before)?;
            self.given = given;
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
        let window = self.model.info()?.context_window.filter(|window| *window > 0)?;
        let used = self.last.lock().unwrap_or_else(PoisonError::into_inner).total_tokens();
        let left = window.saturating_sub(used).saturating_mul(100) / window;
        (used > 0).then(|| format!("{left} % of the context left"))
    }

    /// Returns the conversation to its state after so many questions.
    fn rewind(&mut self, questions: usize) -> Result<(), Failure> {
        let all = self.conversation.exchanges().len();
        if questions >= all {
            return Ok(());
        }
        let old = self.conversation.id();
        let conversations = &self.memory.conversations;
        self.conversation = match questions {
            0 => self.memory.create(),
            _ => self.handle.block_on(conversations.fork(old, Some(questions)))?,
        };
        if std::mem::replace(&mut self.is_ours, true) {
            self.handle.block_on(conversations.delete(old))?;
        }
        Ok(())
    }
}
