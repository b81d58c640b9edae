//! `toolpost chat`, and `toolpost run --interactive`: one conversation with an agent, turn by turn.

mod commands;
mod history;
mod input;
mod slash;

use std::io::{self, IsTerminal as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::runtime::Runtime;
use toolpost_agent::{Agent, Outcome, Run};
use toolpost_core::{Event, EventSink, RunId, RunRecord, Scope, Usage};
use toolpost_llm::{AssistantTurn, Item, Model, ModelId, ModelSpec, Part, Secret, Turn};
use toolpost_toolbox::ToolSession;

use self::input::{Input, Said};
use super::agent::{Parts, put_away, store};
use super::model::{model, recorded};
use super::run::{ended, show, show_files};
use crate::args::{AgentArgs, ChatArgs};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::interrupt::Turns;
use crate::port::TerminalPort;
use crate::print::Printer;
use crate::style::{FAINT, HINT, STRONG, harmless, paint};
use crate::terminal::Screen;
use crate::workspace::Workspace;
use crate::{env, progress};

/// How often what goes on is drawn again.
const FRAME: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &ChatArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    talk(&args.work, None, config, printer)
}

/// Talks until the person leaves.
pub(super) fn talk(
    work: &AgentArgs,
    first: Option<String>,
    config: &Config,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let key = env::get("ANTHROPIC_API_KEY").map(Secret::new);
    let (model, spec) = model(work, config, key.as_ref())?;
    let id = RunId::new();
    let workspace = Workspace::open(work.workdir.as_deref(), &work.attach)?;
    let store = store(work, config, &workspace, id);
    let runtime = super::runtime()?;
    let screen = Screen::new(printer, work.plain);
    let partial = Arc::new(Mutex::new(String::new()));
    let events = overheard(progress::sink_of(printer, screen.clone()), &partial);
    let parts = runtime.block_on(Parts::open(work, config, &workspace, events, printer))?;
    let turns = runtime.block_on(async { Turns::watch() })?;
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal() && printer.is_text();
    let mut input = Input::open(is_terminal)?;
    input.offer("/tools", parts.toolbox.specs().iter().map(|spec| spec.name.clone()).collect());
    input.offer("/approve", parts.toolbox.specs().iter().map(|spec| spec.name.clone()).collect());
    // The first thing that is written: from here on only the conversation itself can fail.
    let model = recorded(work, model, key)?;
    let owner = env::get("USER").unwrap_or_else(|| "operator".into());
    let port = TerminalPort::new(printer, &work.permission, store.clone()).on_screen(screen.clone());
    if let Some(screen) = &screen {
        runtime.spawn(draw(Arc::clone(screen)));
    }
    let agent = parts.agent(Arc::clone(&model))?;
    let mut chat = Chat {
        parts: &parts,
        config,
        printer,
        is_recorded: work.record.is_some(),
        agent,
        model,
        turns: Vec::new(),
        begins: Vec::new(),
        tools: None,
        scope: Scope::new(owner).with_working_dir(workspace.path()),
        port: Arc::new(port),
        screen,
        partial,
        interrupts: turns,
        usage: Usage::default(),
        cost: Some(0.0),
        next_id: Some(id),
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
    let ended = chat.talk(&runtime, &mut input, first, is_terminal);
    super::end(runtime);
    let mut made = Vec::new();
    let put = store.map_or(Ok(()), |store| put_away(&workspace, &store, &mut made));
    show_files(&made, printer);
    match put {
        Err(failure) => {
            Err(failure.hint(format!("The files are still in `{}`.", workspace.keep().display())))
        }
        Ok(()) => ended,
    }
}

/// Draws again and again: what was held back, and how long calls take.
pub(super) async fn draw(screen: Arc<Screen>) {
    loop {
        tokio::time::sleep(FRAME).await;
        screen.tick();
    }
}

/// The same sink, and what the model is saying in the turn that is not over.
fn overheard(sink: EventSink, partial: &Arc<Mutex<String>>) -> EventSink {
    let partial = Arc::clone(partial);
    Arc::new(move |event| {
        let mut said = partial.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::TextDelta { text, .. } => said.push_str(text),
            Event::TurnStarted { .. } | Event::TurnFinished { .. } => said.clear(),
            _ => {}
        }
        drop(said);
        sink(event);
    })
}

/// A conversation.
struct Chat<'a> {
    parts: &'a Parts<'a>,
    config: &'a Config,
    printer: &'a Printer,
    is_recorded: bool,
    agent: Agent,
    model: Arc<dyn Model>,
    turns: Vec<Turn>,
    /// Where what the person said each time begins.
    begins: Vec<usize>,
    tools: Option<ToolSession>,
    scope: Scope,
    port: Arc<TerminalPort>,
    screen: Option<Arc<Screen>>,
    partial: Arc<Mutex<String>>,
    interrupts: Turns,
    usage: Usage,
    /// What it has cost, as long as that is known.
    cost: Option<f64>,
    /// The name of the first run, by which its files are put away.
    next_id: Option<RunId>,
    handle: tokio::runtime::Handle,
}

/// What a line came to.
enum Next {
    Goes,
    Ends,
}

impl Chat<'_> {
    fn talk(
        &mut self,
        runtime: &Runtime,
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
                match self.command(&words) {
                    Ok(Next::Ends) => return Ok(if is_terminal { Exit::Ok } else { exit }),
                    Ok(Next::Goes) => {}
                    Err(failure) => exit = self.printer.failure(&failure),
                }
                continue;
            }
            match self.turn(runtime, words) {
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

    /// One thing that is said, and the answer.
    fn turn(&mut self, runtime: &Runtime, words: String) -> Result<(), Failure> {
        let begin = self.turns.len();
        let mut turns = self.turns.clone();
        match turns.last_mut() {
            // A turn that was broken off may have left one without an answer.
            Some(Turn::User(parts)) => parts.push(Part::text(words)),
            _ => turns.push(Turn::user(words)),
        }
        let mut run = Run::from_turns(&self.agent, turns)
            .with_caller(super::caller())
            .with_scope(self.scope.clone())
            .with_port(Arc::clone(&self.port) as Arc<dyn toolpost_core::Port>)
            .with_cancellation(self.interrupts.begin());
        if let Some(id) = self.next_id.take() {
            run = run.with_id(id);
        }
        if let Some(tools) = self.tools.clone() {
            run = run.with_tool_session(tools);
        }
        if let Some(screen) = &self.screen {
            screen.begin();
        }
        let outcome = runtime.block_on(run.finish());
        let shown = self.screen.as_ref().map(|screen| screen.settle());
        self.take(begin, &outcome);
        show(RunRecord::clone(&outcome.record), outcome.stop.is_answer(), shown.as_deref(), self.printer)?;
        match ended(&outcome) {
            // Whoever stops it knows.
            Err(failure) if failure.exit == Exit::Interrupted => {
                self.tell(&paint(STRONG, "stopped; what was said so far is kept"));
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// Keeps what a run came to.
    fn take(&mut self, begin: usize, outcome: &Outcome) {
        let record = &outcome.record;
        self.usage.add(&record.usage);
        self.cost = match (self.cost, record.cost_usd) {
            (Some(all), Some(more)) => Some(all + more),
            // A turn in which nothing was used costs nothing.
            (all, None) if record.usage.total_tokens() == 0 => all,
            _ => None,
        };
        if outcome.tool_session.is_some() {
            self.tools.clone_from(&outcome.tool_session);
        }
        let said = std::mem::take(&mut *self.partial.lock().unwrap_or_else(PoisonError::into_inner));
        let mut turns = outcome.turns.clone();
        if !said.trim().is_empty()
            && let Some(turn) = broken_off(&said)
        {
            turns.push(turn);
        }
        // What nobody has answered can be said again; it is not sent twice.
        if outcome.error.is_some() && turns.len() <= begin + 1 {
            return;
        }
        self.begins.push(begin.min(turns.len().saturating_sub(1)));
        self.turns = turns;
    }
}

/// What a model said before it was stopped, as a turn of nobody's wire: each takes its text.
fn broken_off(said: &str) -> Option<Turn> {
    let item = json!({ "view": { "text": { "text": said } }, "raw": { "type": "text", "text": said } });
    let item: Item = serde_json::from_str(&item.to_string()).ok()?;
    Some(Turn::Assistant(AssistantTurn::new(ModelId::new("interrupted", "text"), vec![item])))
}
