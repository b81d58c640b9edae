//! The options of an agent: those of the command line, of its agent file, and of the resumed run.

mod stored;

use std::sync::Arc;

use toolpost_agent::Conversation;
use toolpost_llm::{Model, ModelSpec};

pub(crate) use self::stored::StoredOptions;
use crate::agent_file::AgentFile;
use crate::args::{AgentArgs, AgentKind};
use crate::config::Config;
use crate::failure::Failure;
use crate::memory::Memory;
use crate::model::model;
use crate::print::Printer;
use crate::style::{HINT, paint};

/// The options of an agent with its memory and its model.
pub(crate) struct AgentOptions {
    pub(crate) args: AgentArgs,
    /// The settings, with those of the agent file.
    pub(crate) config: Config,
    pub(crate) file: Option<AgentFile>,
    pub(crate) memory: Memory,
    pub(crate) model: Arc<dyn Model>,
    pub(crate) spec: ModelSpec,
    /// The options to store with each run.
    pub(crate) stored: StoredOptions,
    /// Notices for the first record.
    pub(crate) notices: Vec<String>,
    /// The conversation to resume or to fork.
    source: Option<Conversation>,
}

impl AgentOptions {
    /// Resolves the options of a command: given ones, else those of the resumed run. The agent file must be trusted.
    pub(crate) async fn resolve(
        given: &AgentArgs,
        config: &Config,
        printer: &Printer,
    ) -> Result<Self, Failure> {
        let memory = Memory::open(given, config)?;
        memory.warm();
        let source = memory.source(given).await?;
        let restored = match &source {
            Some(source) => memory.stored_options(source).await.and_then(|value| StoredOptions::read(&value)),
            None => None,
        };
        // Another agent has its own options.
        let restored = restored.filter(|stored| given.agent.is_none() || given.agent == stored.agent());
        let mut args = given.clone();
        let mut notices = Vec::new();
        if let Some(stored) = &restored {
            let (used, missing) = stored.restore(&mut args, config);
            if !used.is_empty() {
                printer.note(&format!("{} {}", paint(HINT, "restored:"), used.join(", ")));
            }
            if !missing.is_empty() {
                let missing = missing.join(", ");
                printer.note(&format!("{} {missing}", paint(HINT, "not restored:")));
                notices.push(format!("not restored: {missing}"));
            }
        }
        let file = match &args.agent {
            Some(AgentKind::File(path)) => Some(AgentFile::open(path, config)?),
            Some(AgentKind::ClaudeCode) => {
                return Err(Failure::usage("Claude Code has no chat")
                    .hint("Use `toolpost run --agent claude-code`, or another agent."));
            }
            Some(AgentKind::Loop) | None => None,
        };
        let changed = restored.as_ref().and_then(|stored| stored.changed_agent(file.as_ref()?));
        if let Some(notice) = &changed {
            printer.warn(notice);
        }
        let config = match &file {
            Some(file) => file.settings(config)?,
            None => config.clone(),
        };
        let (model, spec) = model(&args, &config)?;
        let stored = StoredOptions::new(&args, &config, file.as_ref());
        notices.extend(changed);
        Ok(Self { args, config, file, memory, model, spec, stored, notices, source })
    }

    /// Begins the conversation: a resumed one, a fork, or a new one.
    pub(crate) async fn conversation(&self) -> Result<Conversation, Failure> {
        // Answers cost money, so the store must work first.
        self.memory.check().await?;
        match &self.source {
            Some(source) if self.args.fork.is_some() => {
                Ok(self.memory.conversations.fork(source.id(), None).await?)
            }
            Some(source) => Ok(source.clone()),
            None => Ok(self.memory.create()),
        }
    }
}
