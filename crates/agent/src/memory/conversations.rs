//! The conversations of a store: create, find, fork, delete.

use std::sync::Arc;

use toolpost_core::{CallError, Code, DocStore, Document, ScopeId, ToolError};
use toolpost_llm::Scrubber;

use super::conversation::{Conversation, ConversationSummary, Head};
use super::log::{LogStore, parse_head};

/// The prefix of conversation documents.
const PREFIX: &str = "conversations/";

/// The conversations of a store.
///
/// ```
/// # use std::sync::Arc;
/// # use toolpost_agent::{Agent, Conversations};
/// # use toolpost_llm::ScriptModel;
/// # use toolpost_toolbox::{MemoryStore, Toolbox};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), toolpost_core::ToolError> {
/// # let model = ScriptModel::parse("hello", "turns: [{ text: Hello. }, { text: Still here. }]")?;
/// # let agent = Agent::builder(Arc::new(model), Toolbox::builder().build()?).build();
/// let conversations = Conversations::new(Arc::new(MemoryStore::new()));
/// let conversation = conversations.create_in("/srv/sales");
/// conversation.run(&agent, "Good morning.").finish().await;
///
/// let again = conversations.latest("/srv/sales").await?.expect("it is stored");
/// let output = again.run(&agent, "Are you there?").finish().await;
/// assert_eq!(output.text(), "Still here.");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Conversations {
    store: LogStore,
}

impl Conversations {
    /// The version of the format of conversations and of the runs of [`Runs`](crate::Runs).
    pub const FORMAT: u8 = super::log::VERSION;

    /// The conversations of a store.
    pub fn new(store: Arc<dyn DocStore>) -> Self {
        Self { store: LogStore::new(store) }
    }

    /// Masks these secrets in everything stored from now on. Defaults to none.
    ///
    /// [Secrets in tool calls](toolpost_llm::call_secrets) are always masked.
    #[must_use]
    pub fn with_secrets(self, secrets: impl Into<Scrubber>) -> Self {
        Self { store: self.store.with_secrets(secrets) }
    }

    /// Creates a conversation. It is stored with its first run.
    pub fn create(&self) -> Conversation {
        let id = ScopeId::new();
        Conversation::new(self.store.clone(), name(id), Head::new(id, None))
    }

    /// Creates a conversation of a directory or project; see [`latest`](Self::latest).
    pub fn create_in(&self, directory: impl Into<String>) -> Conversation {
        let id = ScopeId::new();
        Conversation::new(self.store.clone(), name(id), Head::new(id, Some(directory.into())))
    }

    /// Opens a conversation by id.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown id, `DEPENDENCY` for an invalid document, and errors of the store.
    pub async fn open(&self, id: ScopeId) -> Result<Conversation, CallError> {
        Ok(Conversation::read(self.store.clone(), self.document(id).await?, usize::MAX).await?)
    }

    /// The conversation with an id, a new one if there is none.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open), except `NOT_FOUND`.
    pub async fn open_or_create(&self, id: ScopeId) -> Result<Conversation, CallError> {
        match self.open(id).await {
            Err(error) if error.code() == Code::NotFound => {
                Ok(Conversation::new(self.store.clone(), name(id), Head::new(id, None)))
            }
            other => other,
        }
    }

    /// The id of the only conversation with this prefix.
    ///
    /// # Errors
    /// `NOT_FOUND` for no match, `INVALID_INPUT` for several, and errors of the store.
    pub async fn find(&self, start: &str) -> Result<ScopeId, CallError> {
        let found = self.store.find(PREFIX, start, "conversation").await?;
        Ok(found.parse().map_err(|error: String| ToolError::internal(error))?)
    }

    /// The latest conversation of a directory.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open), except `NOT_FOUND`.
    pub async fn latest(&self, directory: &str) -> Result<Option<Conversation>, CallError> {
        match self.list(Some(directory), 1).await?.first() {
            Some(summary) => self.open(summary.id).await.map(Some),
            None => Ok(None),
        }
    }

    /// Forks a conversation after all or after the first `prompts` prompts. The fork is independent of the original.
    ///
    /// # Errors
    /// `INVALID_INPUT` if it has fewer prompts, and those of [`open`](Self::open).
    pub async fn fork(&self, id: ScopeId, prompts: Option<usize>) -> Result<Conversation, CallError> {
        let document = self.document(id).await?;
        let head: Head = parse_head(&document)?;
        if let Some(prompts) = prompts.filter(|prompts| *prompts == 0 || *prompts > head.summary.prompts) {
            return Err(ToolError::invalid_input(format!(
                "prompts: expected 1 to {}, found {prompts}: the conversation has no more",
                head.summary.prompts
            ))
            .into());
        }
        let original =
            Conversation::read(self.store.clone(), document, prompts.unwrap_or(usize::MAX)).await?;
        let exchanges = original.exchanges();
        let id = ScopeId::new();
        let copy = Conversation::new(self.store.clone(), name(id), head.fork(id, exchanges.len()));
        copy.persist_copy(&exchanges, &original.turns()).await?;
        Ok(copy)
    }

    /// Lists conversations of one directory or of all, the latest first, at most `limit`. Lists the latest 5,000 only.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn list(
        &self,
        directory: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ConversationSummary>, CallError> {
        let matches = |head: &Head| directory.is_none() || head.summary.directory.as_deref() == directory;
        let heads = self.store.heads(PREFIX, matches, usize::MAX).await?;
        let mut found: Vec<_> = heads.into_iter().map(|head| head.summary).collect();
        found.sort_by(|a, b| b.updated.cmp(&a.updated).then_with(|| b.id.cmp(&a.id)));
        found.truncate(limit);
        Ok(found)
    }

    /// Deletes a conversation and its history. Returns whether it existed.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn delete(&self, id: ScopeId) -> Result<bool, CallError> {
        Ok(self.store.delete(&name(id)).await?)
    }

    async fn document(&self, id: ScopeId) -> Result<Document, ToolError> {
        self.store.load(&name(id)).await?.ok_or_else(|| {
            ToolError::not_found(format!("unknown conversation `{id}`"))
                .suggest("List the stored conversations.")
        })
    }
}

fn name(id: ScopeId) -> String {
    format!("{PREFIX}{id}")
}

impl std::fmt::Debug for Conversations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conversations").finish_non_exhaustive()
    }
}
