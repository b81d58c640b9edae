//! Stored conversations and runs of a command.

use std::sync::Arc;

use serde_json::Value;
use toolpost_agent::{Conversation, ConversationSummary, Conversations, Runs};
use toolpost_core::{Code, DocStore, RunRecord};
use toolpost_toolbox::MemoryStore;

use crate::args::AgentArgs;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::store::{self, LazyStore};
use crate::{env, process_identity};

/// The stores of conversations and runs.
pub(crate) struct Memory {
    pub(crate) conversations: Conversations,
    /// The runs, if they are stored.
    pub(crate) runs: Option<Runs>,
    /// The directory of new conversations.
    pub(crate) directory: String,
    /// The store's file, if it existed at the start.
    file: Option<Arc<LazyStore>>,
}

/// The maximum number of listed conversations.
const LISTED: usize = 20;

impl Memory {
    /// Opens the store; with `--no-save`, or without a home directory, a store in memory.
    pub(crate) fn open(args: &AgentArgs, config: &Config) -> Result<Self, Failure> {
        let here =
            std::env::current_dir().map_err(|error| Failure::of_machine("the current directory", &error))?;
        let directory = here.display().to_string();
        let is_kept = !args.no_save && !config.settings.no_save;
        let asks = args.resume_last || args.resume.is_some() || args.fork.is_some();
        let path = match store::path(config) {
            Ok(path) if is_kept || asks => path,
            Err(failure) if asks => return Err(failure),
            _ => {
                let conversations = Conversations::new(Arc::new(MemoryStore::new()));
                return Ok(Self { conversations, runs: None, directory, file: None });
            }
        };
        let has_file = path.exists();
        let file = Arc::new(LazyStore::new(path));
        let store: Arc<dyn DocStore> = file.clone();
        let conversations = Conversations::new(Arc::clone(&store)).with_secrets(env::scrubber().clone());
        let mut runs = Runs::new(store).with_secrets(env::scrubber().clone());
        if let Some(process) = process_identity::own() {
            runs = runs.with_process(process);
        }
        Ok(Self { conversations, runs: Some(runs), directory, file: has_file.then_some(file) })
    }

    /// Opens an existing store in the background. The first commit creates a missing one.
    pub(crate) fn warm(&self) {
        if let Some(file) = self.file.clone() {
            tokio::spawn(async move { file.warm().await });
        }
    }

    /// Adds later changes of a run's record; returns a warning if that fails.
    pub(crate) async fn amend(&self, record: &RunRecord) -> Option<String> {
        let error = self.runs.as_ref()?.amend(record).await.err()?;
        Some(format!("the stored run lacks later files: {error}"))
    }

    /// Creates a conversation.
    pub(crate) fn create(&self) -> Conversation {
        self.conversations.create_in(self.directory.as_str())
    }

    /// Checks that an existing store opens.
    pub(crate) async fn check(&self) -> Result<(), Failure> {
        match &self.file {
            Some(file) => Ok(file.check().await?),
            None => Ok(()),
        }
    }

    /// The conversation to resume or to fork, if the options name one.
    pub(crate) async fn source(&self, args: &AgentArgs) -> Result<Option<Conversation>, Failure> {
        if let Some(id) = args.resume.as_ref().or(args.fork.as_ref()) {
            return self.find(id).await.map(Some);
        }
        if !args.resume_last {
            return Ok(None);
        }
        let latest = self.conversations.latest(&self.directory).await?;
        latest.map(Some).ok_or_else(|| {
            Failure::new(Exit::Failed, "NOT_FOUND", "this directory has no conversations")
                .hint("Remove `--continue`, or name a conversation with `--resume ID`.")
        })
    }

    /// The options that are stored with the last run of a conversation. A removed run has none.
    pub(crate) async fn stored_options(&self, conversation: &Conversation) -> Option<Value> {
        let last = conversation.exchanges().last()?.run;
        self.runs.as_ref()?.options(last).await.ok().flatten()
    }

    /// The latest conversations of the directory.
    pub(crate) async fn last(&self) -> Result<Vec<ConversationSummary>, Failure> {
        // Listing never creates a store.
        if self.file.is_none() {
            return Ok(Vec::new());
        }
        Ok(self.conversations.list(Some(&self.directory), LISTED).await?)
    }

    /// The IDs of the latest conversations.
    pub(crate) async fn ids(&self) -> Result<Vec<String>, Failure> {
        Ok(self.last().await?.iter().map(|summary| summary.id.to_string()).collect())
    }

    /// The conversation of a run, by the run's ID or its beginning.
    async fn conversation_of_run(&self, start: &str) -> Option<toolpost_core::ScopeId> {
        let runs = self.runs.as_ref()?;
        let id = runs.find(start).await.ok()?;
        runs.load(id).await.ok()?.summary.conversation
    }

    /// Finds a conversation by its ID or that of one of its runs, or their beginnings.
    pub(crate) async fn find(&self, start: &str) -> Result<Conversation, Failure> {
        let found = match self.conversations.find(start).await {
            Ok(id) => self.conversations.open(id).await,
            Err(error) => match self.conversation_of_run(start).await {
                Some(id) => self.conversations.open(id).await,
                None => Err(error),
            },
        };
        found.map_err(|error| {
            let is_unknown = error.code() == Code::NotFound;
            let failure = Failure::from(error);
            if is_unknown {
                failure.hint("`/resume` in `toolpost chat` lists the conversations of this directory.")
            } else {
                failure
            }
        })
    }
}
