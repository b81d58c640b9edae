//! The agent of `run` and `chat`: opened once, run with each prompt.

use std::sync::Arc;

use serde_json::{Map, Value};
use toolpost_agent::{Agent, Conversation, Run, RunOutput};
use toolpost_core::{Cancellation, EventSink, RunRecord, Scope};
use toolpost_llm::{Model, ModelSpec, Part, Turn};

use crate::agent::Parts;
use crate::agent_options::{AgentOptions, StoredOptions};
use crate::config::Config;
use crate::env;
use crate::failure::Failure;
use crate::hosted::{self, HostedFile, Place, Uploads};
use crate::model::Tape;
use crate::port::TerminalPort;
use crate::print::Printer;
use crate::run_files::RunFiles;
use crate::style::{HINT, paint};
use crate::terminal::Screen;

/// An opened agent.
pub(crate) struct AgentSession<'a> {
    pub(crate) options: &'a AgentOptions,
    pub(crate) files: &'a RunFiles<'a>,
    pub(crate) printer: &'a Printer,
    pub(crate) parts: Parts<'a>,
    pub(crate) tape: Tape,
    pub(crate) model: Arc<dyn Model>,
    pub(crate) agent: Agent,
    /// Where `code_execution` runs, if it is among the tools.
    pub(crate) place: Option<Place>,
    pub(crate) conversation: Conversation,
    pub(crate) port: Arc<TerminalPort>,
    pub(crate) screen: Option<Arc<Screen>>,
    /// Uploads and notices for the next prompt.
    pub(crate) given: Uploads,
    /// The options to store with the next run.
    pub(crate) stored: StoredOptions,
    scope: Scope,
    /// The metadata of usage events.
    tags: Map<String, Value>,
}

impl<'a> AgentSession<'a> {
    /// Opens the tools, then the conversation. `config` has the settings without those of the agent file.
    pub(crate) async fn open(
        options: &'a AgentOptions,
        files: &'a RunFiles<'a>,
        screen: Option<Arc<Screen>>,
        events: EventSink,
        config: &Config,
        printer: &'a Printer,
    ) -> Result<Self, Failure> {
        let args = &options.args;
        let parts = Parts::open(options, &files.workspace, events, printer).await?;
        // The first write: only the run itself can fail after it.
        let tape = Tape::open(args)?;
        let conversation = options.conversation().await?;
        let model = Arc::clone(&options.model);
        let place = parts.code_place(&*model)?;
        let agent = parts.agent(Arc::clone(&model), &tape)?;
        let owner = env::get("USER").unwrap_or_else(|| "operator".into());
        let port =
            TerminalPort::new(printer, &args.permission, files.store.clone()).on_screen(screen.clone());
        Ok(Self {
            options,
            files,
            printer,
            parts,
            tape,
            model,
            agent,
            place,
            conversation,
            port: Arc::new(port),
            screen,
            given: Uploads::default(),
            stored: options.stored.clone(),
            scope: Scope::new(owner).with_working_dir(files.workspace.path()),
            tags: config.settings.tags.clone(),
        })
    }

    /// Uploads the attachments for hosted code with this model.
    pub(crate) async fn upload(&self, model: &dyn Model, place: Option<&Place>) -> Result<Uploads, Failure> {
        let AgentOptions { args, config, .. } = self.options;
        hosted::upload(args, place, model, &self.files.workspace, config, self.printer).await
    }

    /// Sets the uploads of the first prompt, and prints its notices.
    pub(crate) fn announce(&mut self, mut given: Uploads) {
        if !self.options.args.enable_file_support {
            given.notices.iter().for_each(|notice| self.printer.warn(notice));
        }
        if let Some(notice) = self.files.workspace.omissions() {
            self.printer.warn(&notice);
            given.notices.push(notice);
        }
        given.notices.extend(self.options.notices.iter().cloned());
        if matches!(self.options.spec, ModelSpec::Script(_)) {
            let notice = "the answers are scripted; the tools, the sandbox and the numbers are real";
            self.printer.note(&format!("{} {notice}", paint(HINT, "script:")));
            given.notices.push(notice.to_owned());
        }
        self.given = given;
    }

    /// Prints where code runs.
    pub(crate) fn note_place(&self) {
        if let Some(place) = &self.place {
            self.printer.note(&format!("{} {}", paint(HINT, "code:"), place.notice));
        }
    }

    /// Starts a run with a prompt and its uploads.
    pub(crate) fn run(&self, prompt: String, given: &Uploads) -> Run {
        let parts = std::iter::once(Part::text(prompt)).chain(given.parts.iter().cloned()).collect();
        let mut run = self
            .conversation
            .run_turn(&self.agent, Turn::User(parts))
            .with_caller(crate::toolbox::caller())
            .with_values(crate::agent_tool::values(&self.tape))
            .with_usage_metadata(self.tags.clone())
            .with_scope(self.scope.clone().with_id(self.conversation.id()))
            .with_port(Arc::clone(&self.port) as Arc<dyn toolpost_core::Port>)
            .with_stored_options(self.stored.to_value());
        for notice in self.place.iter().map(|place| &place.notice).chain(&given.notices) {
            run = run.with_notice(notice.as_str());
        }
        if let Some(runs) = &self.options.memory.runs {
            run = run.persist_to(runs);
        }
        if let Some(screen) = &self.screen {
            screen.begin();
        }
        run
    }

    /// The record of a run, with the downloaded files of hosted code that it did not have before.
    pub(crate) async fn record(
        &self,
        outcome: &RunOutput,
        before: &[HostedFile],
        stop: &Cancellation,
    ) -> RunRecord {
        let config = &self.options.config;
        let directory = self.files.artifacts(config);
        let fetched = hosted::fetch(&outcome.turns, before, &directory, config, stop).await;
        let mut record = RunRecord::clone(&outcome.record);
        record.artifacts.extend(fetched.artifacts);
        fetched.notices.iter().for_each(|notice| self.printer.warn(notice));
        record.notices.extend(fetched.notices);
        record
    }
}
