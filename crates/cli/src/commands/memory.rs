//! What is kept of conversations and runs, in the store of the command.

use std::sync::Arc;

use tokio::runtime::Runtime;
use toolpost_agent::{Conversation, ConversationSummary, Conversations, NewConversation, Runs};
use toolpost_core::{Code, DocStore, RunRecord};
use toolpost_toolbox::MemoryStore;

use crate::args::AgentArgs;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::store::{self, LazyStore};
use crate::{env, holder};

/// Where conversations and runs are kept.
pub(super) struct Memory {
    pub(super) conversations: Conversations,
    /// The runs, if they are kept.
    pub(super) runs: Option<Runs>,
    /// The folder that conversations belong to.
    pub(super) folder: String,
    /// The store that was there when the command began, if there was one.
    file: Option<Arc<LazyStore>>,
}

/// How many conversations are listed.
const LISTED: usize = 20;

impl Memory {
    /// The store of the command; with `--no-save`, or where there is no place for one, the memory of this process.
    pub(super) fn open(args: &AgentArgs, config: &Config) -> Result<Self, Failure> {
        let here = std::env::current_dir()
            .map_err(|error| Failure::of_machine("the folder of the command", &error))?;
        let folder = here.display().to_string();
        let is_kept = !args.no_save && !config.flag("no_save");
        let asks = args.go_on || args.resume.is_some() || args.fork.is_some();
        let path = match store::path(config) {
            Ok(path) if is_kept || asks => path,
            Err(failure) if asks => return Err(failure),
            _ => {
                let conversations = Conversations::new(Arc::new(MemoryStore::new()));
                return Ok(Self { conversations, runs: None, folder, file: None });
            }
        };
        let has_file = path.exists();
        let file = Arc::new(LazyStore::new(path));
        let store: Arc<dyn DocStore> = file.clone();
        let conversations = Conversations::new(Arc::clone(&store)).with_secrets(env::secrets());
        let mut runs = Runs::new(store).with_secrets(env::secrets());
        if let Some(holder) = holder::own() {
            runs = runs.with_holder(holder);
        }
        Ok(Self { conversations, runs: Some(runs), folder, file: has_file.then_some(file) })
    }

    /// Opens the store on a thread of its own while the rest of the command is made ready. One that is not there yet is
    /// made by the first thing that is kept.
    pub(super) fn warm(&self, runtime: &Runtime) {
        if let Some(file) = self.file.clone() {
            runtime.spawn(async move { file.warm().await });
        }
    }

    /// Keeps what came to a record after its run; what to tell if that failed.
    pub(super) async fn amend(&self, record: &RunRecord) -> Option<String> {
        let error = self.runs.as_ref()?.amend(record).await.err()?;
        Some(format!("what is kept of the run lacks files that came after it: {error}"))
    }

    /// A new conversation.
    pub(super) fn create(&self) -> Conversation {
        self.conversations.create(NewConversation::default().in_folder(self.folder.as_str()))
    }

    /// The conversation that the words of the command ask for, else a new one.
    pub(super) async fn begin(&self, args: &AgentArgs) -> Result<Conversation, Failure> {
        // What is asked of a model costs money, and is to be kept.
        if let Some(file) = &self.file {
            file.check().await?;
        }
        if let Some(id) = &args.resume {
            return self.find(id).await;
        }
        if let Some(id) = &args.fork {
            let from = self.find(id).await?.id();
            return Ok(self.conversations.fork(from, None).await?);
        }
        if !args.go_on {
            return Ok(self.create());
        }
        self.conversations.last(&self.folder).await?.ok_or_else(|| {
            Failure::new(Exit::Failed, "NOT_FOUND", "no conversation was had in this folder")
                .hint("Begin one without `--continue`, or name one with `--resume ID`.")
        })
    }

    /// The last conversations of the folder.
    pub(super) async fn last(&self) -> Result<Vec<ConversationSummary>, Failure> {
        // Whoever keeps nothing has nothing, and nobody makes a file by looking.
        if self.file.is_none() {
            return Ok(Vec::new());
        }
        Ok(self.conversations.list(Some(&self.folder), LISTED).await?)
    }

    /// Their ids.
    pub(super) async fn ids(&self) -> Result<Vec<String>, Failure> {
        Ok(self.last().await?.iter().map(|summary| summary.id.to_string()).collect())
    }

    /// The conversation of a run, by the run's id or the beginning of it.
    async fn conversation_of_run(&self, start: &str) -> Option<toolpost_core::ScopeId> {
        let runs = self.runs.as_ref()?;
        let id = runs.find(start).await.ok()?;
        runs.load(id).await.ok()?.summary.conversation
    }

    /// A conversation by its id or the beginning of it, or by that of one of its runs.
    pub(super) async fn find(&self, start: &str) -> Result<Conversation, Failure> {
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
                failure.hint("`/resume` in `toolpost chat` lists those of this folder.")
            } else {
                failure
            }
        })
    }
}
