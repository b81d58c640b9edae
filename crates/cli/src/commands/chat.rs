//! `toolpost chat`, and `toolpost run --interactive`: one conversation with an agent, turn by turn.

mod commands;
mod history;
mod input;
mod slash;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::runtime::Handle;
use toolpost_agent::{Agent, Conversation};
use toolpost_core::{Event, EventSink, RunId, RunRecord, Scope, Usage};
use toolpost_llm::{Model, ModelSpec, Part, Turn};
use toolpost_sandbox::Level;

use self::input::{Input, Said};
use super::agent::{NotPutAway, Parts, artifacts, put_away, stayed, store, tags, workspace};
use super::held;
use super::hosted::{self, Given, Place};
use super::memory::Memory;
use super::model::{Tape, model};
use super::run::{ended, show, show_files};
use crate::args::{AgentArgs, ChatArgs};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::interrupt::{Turns, unless};
use crate::port::TerminalPort;
use crate::print::Printer;
use crate::style::{FAINT, HINT, STRONG, harmless, one_line, paint};
use crate::terminal::Screen;
use crate::workspace::Workspace;
use crate::{env, progress};

/// How often what goes on is drawn again.
const FRAME: Duration = Duration::from_millis(100);

/// What giving files to a provider is called where it is stopped.
const UPLOAD: &str = "the upload of what is attached";

pub(crate) fn run(args: &ChatArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    talk(&args.work, args.text.clone(), config, printer)
}

/// Talks until the person leaves.
pub(super) fn talk(
    work: &AgentArgs,
    first: Option<String>,
    config: &Config,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let (model, spec) = model(work, config)?;
    let tags = tags(work, config)?;
    let id = RunId::new();
    let mut workspace = workspace(work, config, printer)?;
    let store = store(work, config, &workspace, id);
    let runtime = super::runtime()?;
    let screen = Screen::new(printer, work.plain);
    let memory = Memory::open(work, config)?;
    memory.warm(&runtime);
    let last = Arc::new(Mutex::new(Usage::default()));
    let events = overheard(progress::sink_of(printer, screen.clone()), &last);
    let conversation = runtime.block_on(memory.begin(work))?;
    let parts = runtime.block_on(Parts::open(work, config, &workspace, events, printer))?;
    let turns = runtime.block_on(async { Turns::watch() })?;
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal() && printer.is_text();
    let mut input = Input::open(is_terminal)?;
    input.offer("/resume", runtime.block_on(memory.ids())?);
    input.offer("/tools", parts.toolbox.specs().iter().map(|spec| spec.name.clone()).collect());
    input.offer("/approve", parts.toolbox.specs().iter().map(|spec| spec.name.clone()).collect());
    // The first thing that is written: from here on only the conversation itself can fail.
    let tape = Tape::open(work)?;
    let owner = env::get("USER").unwrap_or_else(|| "operator".into());
    let port = TerminalPort::new(printer, &work.permission, store.clone()).on_screen(screen.clone());
    if let Some(screen) = &screen {
        runtime.spawn(draw(Arc::clone(screen)));
    }
    let agent = parts.agent(Arc::clone(&model), &tape)?;
    let place = parts.code_place(&*model)?;
    let stop = turns.begin();
    let given = hosted::give(work, place.as_ref(), &*model, &workspace, config, printer);
    let mut given = runtime.block_on(unless(&stop, UPLOAD, given))?;
    turns.end();
    if !work.enable_file_support {
        given.notices.iter().for_each(|notice| printer.warn(notice));
    }
    let left_out = workspace.left_out();
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
        chat.tell(&format!(
            "{} the model's words are scripted; the tools, the sandbox and the numbers are real",
            paint(HINT, "script:")
        ));
    }
    if is_terminal {
        chat.tell(&paint(
            FAINT,
            format!("{} · /help lists commands, Ctrl-D leaves", harmless(&chat.model.id().to_string())),
        ));
    }
    chat.tell_place();
    chat.tell_where_it_stands();
    let ended = chat.talk(&mut input, first, is_terminal);
    if is_terminal && memory.runs.is_some() && !chat.conversation.exchanges().is_empty() {
        let id = chat.conversation.id();
        chat.tell(&paint(FAINT, format!("`toolpost chat --resume {id}` goes on from here")));
    }
    super::end(runtime);
    // Nothing works in the directory any more.
    drop(chat);
    drop(parts);
    let is_interrupted = matches!(ended, Ok(Exit::Interrupted));
    let allowed = &work.permission.directory.allow_protected;
    let settled = workspace.end().and_then(|changes| held::settle(changes, allowed, is_interrupted, printer));
    if let (Err(_), Err(failure)) = (&ended, &settled) {
        printer.warn(&failure.message);
    }
    let mut made = Vec::new();
    let put = store.map_or(Ok(NotPutAway::default()), |store| put_away(&workspace, &store, &mut made));
    show_files(&made, printer);
    for notice in stayed(&[], put.as_ref().unwrap_or(&NotPutAway::default())) {
        printer.warn(&notice);
    }
    crate::workspace::clear_stale();
    match put {
        Err(failure) => {
            Err(failure.hint(format!("The files are still in `{}`.", workspace.keep().display())))
        }
        Ok(_) => ended.and_then(|exit| settled.map(|()| exit)),
    }
}

/// Draws again and again: what was held back, and how long calls take.
pub(super) async fn draw(screen: Arc<Screen>) {
    loop {
        tokio::time::sleep(FRAME).await;
        screen.tick();
    }
}

/// The same sink, and what the last answer has consumed, which says how full the model's window is.
fn overheard(sink: EventSink, last: &Arc<Mutex<Usage>>) -> EventSink {
    let last = Arc::clone(last);
    Arc::new(move |event| {
        if let Event::TurnFinished { usage, .. } = event {
            last.lock().unwrap_or_else(PoisonError::into_inner).clone_from(usage);
        }
        sink(event);
    })
}

/// A conversation.
struct Chat<'a> {
    parts: &'a Parts<'a>,
    config: &'a Config,
    printer: &'a Printer,
    tape: Tape,
    agent: Agent,
    model: Arc<dyn Model>,
    conversation: Conversation,
    /// Whether it was begun or copied here, and what was taken back of it is of no use to anybody.
    is_ours: bool,
    memory: &'a Memory,
    scope: Scope,
    port: Arc<TerminalPort>,
    screen: Option<Arc<Screen>>,
    last: Arc<Mutex<Usage>>,
    interrupts: Turns,
    usage: Usage,
    /// What it has cost, as long as that is known.
    cost: Option<f64>,
    /// The record of the latest turn of this conversation that was had here and not taken back.
    latest: Option<Arc<RunRecord>>,
    /// Whether the latest question came to nothing and is not kept.
    is_lost: bool,
    /// The sandbox level that was named.
    level: Option<Level>,
    /// The name of the first run, by which its files are put away.
    next_id: Option<RunId>,
    /// Where code runs, if the model has the tool for it.
    place: Option<Place>,
    work: &'a AgentArgs,
    workspace: &'a Workspace,
    /// What the providers were given that were asked before, and no prompt had yet.
    given_to: BTreeMap<String, Given>,
    /// What the next prompt gives to the provider's code.
    given: Given,
    /// The folder for what the provider's code has made.
    artifacts: PathBuf,
    /// What every event of usage carries.
    tags: Map<String, Value>,
    handle: Handle,
}

/// What a line came to.
enum Next {
    Goes,
    Ends,
}

impl Chat<'_> {
    fn talk(
        &mut self,
        input: &mut Input,
        mut first: Option<String>,
        is_terminal: bool,
    ) -> Result<Exit, Failure> {
        let mut exit = Exit::Ok;
        let mut interrupted = false;
        loop {
            let said = match first.take() {
                Some(words) => Said::Words(words),
                None => input.next()?,
            };
            let words = match said {
                Said::End => return Ok(if is_terminal { Exit::Ok } else { exit }),
                Said::Interrupted { on_empty } => {
                    if on_empty && interrupted {
                        return Ok(Exit::Ok);
                    }
                    interrupted = on_empty;
                    if on_empty {
                        self.tell(&paint(FAINT, "Ctrl-C once more leaves, and so does Ctrl-D."));
                    }
                    continue;
                }
                Said::Words(words) => words,
            };
            interrupted = false;
            if words.trim().is_empty() {
                continue;
            }
            // A path is no command.
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

    /// Says something to the person, beside the conversation.
    fn tell(&self, text: &str) {
        self.printer.note(text);
    }

    fn tell_place(&self) {
        if let Some(place) = &self.place {
            self.tell(&format!("{} {}", paint(HINT, "code:"), place.told));
        }
    }

    /// Of a conversation that goes on, what was said last.
    fn tell_where_it_stands(&self) {
        let summary = self.conversation.summary();
        if summary.prompts > 0 {
            let said = super::run::count(summary.prompts, "question");
            let title = one_line(&summary.title, 80);
            self.tell(&format!(
                "{} {} {}",
                paint(HINT, "goes on:"),
                title,
                paint(FAINT, format!("({said})"))
            ));
        }
    }

    /// One thing that is said, and the answer.
    fn turn(&mut self, words: String) -> Result<(), Failure> {
        self.is_lost = false;
        let before = self.conversation.exchanges().len();
        let had = hosted::made(&self.conversation.turns());
        let given = std::mem::take(&mut self.given);
        let stop = self.interrupts.begin();
        let said = std::iter::once(Part::text(words)).chain(given.parts.iter().cloned()).collect();
        let mut run = self
            .conversation
            .run_turn(&self.agent, Turn::User(said))
            .with_caller(super::caller())
            .with_values(super::agent_tool::values(&self.tape))
            .with_usage_metadata(self.tags.clone())
            .with_scope(self.scope.clone().with_id(self.conversation.id()))
            .with_port(Arc::clone(&self.port) as Arc<dyn toolpost_core::Port>)
            .with_cancellation(stop.clone());
        for notice in self.place.iter().map(|place| &place.told).chain(&given.notices) {
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
        let stayed = stayed(&record.tool_calls, &NotPutAway::default());
        let told: Vec<String> = fetched.notices.into_iter().chain(stayed).collect();
        record.artifacts.extend(fetched.artifacts.iter().cloned());
        record.notices.extend(told.iter().cloned());
        let kept = if fetched.artifacts.is_empty() && told.is_empty() {
            None
        } else {
            self.handle.block_on(self.memory.amend(&record))
        };
        let shown = self.screen.as_ref().map(|screen| screen.settle());
        self.count(&outcome.record.usage, outcome.record.cost_usd);
        self.latest = Some(Arc::clone(&outcome.record));
        let window = self.window_left();
        show_files(&fetched.artifacts, self.printer);
        for notice in told.iter().chain(&kept) {
            self.printer.warn(notice);
        }
        let is_result = outcome.stop.is_answer() || progress::has_last_words(&record);
        show(record, is_result, shown.as_deref(), window, self.printer)?;
        // What nobody has answered can be said again; it is not sent twice.
        if outcome.error.is_some() && outcome.record.tool_calls.is_empty() {
            self.take_back(before)?;
            self.given = given;
            self.is_lost = true;
            self.tell("the question is not kept; say it again to ask it again");
        }
        match ended(&outcome) {
            // Whoever stops it knows.
            Err(failure) if failure.exit == Exit::Interrupted => {
                self.tell(&paint(STRONG, "stopped; what was said so far is kept"));
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

    /// How much of the model's window is left, if that is known.
    fn window_left(&self) -> Option<String> {
        let window = self.model.info()?.context_window.filter(|window| *window > 0)?;
        let used = self.last.lock().unwrap_or_else(PoisonError::into_inner).total_tokens();
        let left = window.saturating_sub(used).saturating_mul(100) / window;
        (used > 0).then(|| format!("{left} % of the context left"))
    }

    /// Goes on from where the conversation was after so many questions.
    fn take_back(&mut self, questions: usize) -> Result<(), Failure> {
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
