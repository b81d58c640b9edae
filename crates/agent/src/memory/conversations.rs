//! The conversations of a store: create, find, fork, delete.

use std::sync::Arc;

use toolpost_core::{DocStore, Document, ScopeId, Secret, ToolError};
use toolpost_llm::Scrubber;

use super::conversation::Conversation;
use super::head::{ConversationSummary, Forked, Head};
use super::latest::latest;
use super::ledger::{Ledger, MAX_LISTED};

/// The prefix of conversation documents.
const PREFIX: &str = "conversations/";
/// The conversations of a store.
///
/// ```
/// # use std::sync::Arc;
/// # use toolpost_agent::{Agent, Conversations, NewConversation};
/// # use toolpost_llm::ScriptModel;
/// # use toolpost_toolbox::{MemoryStore, Toolbox};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), toolpost_core::ToolError> {
/// # let model = ScriptModel::parse("hello", "turns: [{ text: Hello. }, { text: Still here. }]")?;
/// # let agent = Agent::builder(Arc::new(model), Toolbox::builder().build()?).build();
/// let conversations = Conversations::new(Arc::new(MemoryStore::new()));
/// let conversation = conversations.create(NewConversation::default().in_folder("/srv/sales"));
/// conversation.run(&agent, "Good morning.").finish().await;
///
/// let again = conversations.last("/srv/sales").await?.expect("it is stored");
/// let outcome = again.run(&agent, "Are you there?").finish().await;
/// assert_eq!(outcome.text(), "Still here.");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Conversations {
    ledger: Ledger,
}

/// Options of a new conversation.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct NewConversation {
    /// The title, of at most 80 characters. Defaults to the beginning of the first prompt.
    pub title: Option<String>,
    /// The directory, project or other place it belongs to. Defaults to none.
    pub folder: Option<String>,
}

impl NewConversation {
    /// Sets the title.
    #[must_use]
    pub fn titled(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Sets the directory it belongs to; see [`Conversations::last`].
    #[must_use]
    pub fn in_folder(mut self, folder: impl Into<String>) -> Self {
        self.folder = Some(folder.into());
        self
    }
}

impl Conversations {
    /// The conversations of a store.
    pub fn new(store: Arc<dyn DocStore>) -> Self {
        Self { ledger: Ledger::new(store, Arc::default()) }
    }

    /// Masks these secrets in everything stored from now on. Defaults to none.
    #[must_use]
    pub fn with_secrets(self, secrets: Vec<Secret>) -> Self {
        Self { ledger: self.ledger.with_scrubber(Arc::new(Scrubber::new(secrets))) }
    }

    /// Creates a conversation. It is stored with its first run.
    pub fn create(&self, new: NewConversation) -> Conversation {
        let id = ScopeId::new();
        // Mask secrets before truncation: a part of a secret is not detected.
        let title = new.title.map(|title| self.ledger.scrubber().scrub(title));
        Conversation::begin(self.ledger.clone(), id, name(id), Head::new(title.as_deref(), new.folder))
    }

    /// Opens a conversation by id.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown id, `DEPENDENCY` for an invalid document, and errors of the store.
    pub async fn open(&self, id: ScopeId) -> Result<Conversation, ToolError> {
        Conversation::read(self.ledger.clone(), id, self.document(id).await?, usize::MAX).await
    }

    /// The id of the only conversation with this prefix.
    ///
    /// # Errors
    /// `NOT_FOUND` for no match, `INVALID_INPUT` for several, and errors of the store.
    pub async fn find(&self, start: &str) -> Result<ScopeId, ToolError> {
        let found = self.ledger.find(PREFIX, start, "conversation").await?;
        found.parse().map_err(|error: String| ToolError::internal(error))
    }

    /// The latest conversation of a directory.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), except `NOT_FOUND`.
    pub async fn last(&self, folder: &str) -> Result<Option<Conversation>, ToolError> {
        if let Some(id) = latest(&self.ledger, folder).await?
            && let Some(document) = self.ledger.head(&name(id)).await?
            && Head::read(&document)?.folder.as_deref() == Some(folder)
        {
            return Conversation::read(self.ledger.clone(), id, document, usize::MAX).await.map(Some);
        }
        // The latest one was deleted; take the most recently changed one.
        match self.list(Some(folder), 1).await?.first() {
            Some(summary) => self.open(summary.id).await.map(Some),
            None => Ok(None),
        }
    }

    /// Forks a conversation after all or after the first `prompts` prompts. The fork is independent of the original.
    ///
    /// # Errors
    /// `INVALID_INPUT` if it has fewer prompts, and those of [`open`](Self::open).
    pub async fn fork(&self, id: ScopeId, prompts: Option<usize>) -> Result<Conversation, ToolError> {
        let document = self.document(id).await?;
        let head = Head::read(&document)?;
        if let Some(prompts) = prompts.filter(|prompts| *prompts == 0 || *prompts > head.prompts) {
            return Err(ToolError::invalid_input(format!(
                "prompts: expected 1 to {}, found {prompts}: the conversation has no more",
                head.prompts
            )));
        }
        let original =
            Conversation::read(self.ledger.clone(), id, document, prompts.unwrap_or(usize::MAX)).await?;
        let exchanges = original.exchanges();
        let mut new = Head::new(Some(&head.title), head.folder);
        new.forked_from = Some(Forked { from: id, prompts: exchanges.len() });
        new.model = head.model;
        new.carry = head.carry;
        new.code_meter = head.code_meter;
        new.tool_session = head.tool_session;
        let id = ScopeId::new();
        let copy = Conversation::begin(self.ledger.clone(), id, name(id), new);
        copy.persist_copy(&exchanges, &original.turns()).await?;
        Ok(copy)
    }

    /// Lists conversations of one directory or of all, the latest first, at most `limit`. Lists the latest 5,000 only.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn list(
        &self,
        folder: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ConversationSummary>, ToolError> {
        let mut found = Vec::new();
        for document_name in self.ledger.names(PREFIX, MAX_LISTED).await? {
            let Some(Ok(id)) = document_name.strip_prefix(PREFIX).map(str::parse) else { continue };
            let Some(document) = self.ledger.head(&document_name).await? else { continue };
            // An invalid document must not hide the others.
            let Ok(head) = Head::read(&document) else { continue };
            if folder.is_none() || head.folder.as_deref() == folder {
                found.push(ConversationSummary::of(id, &head));
            }
        }
        found.sort_by(|a, b| b.updated.cmp(&a.updated).then_with(|| b.id.cmp(&a.id)));
        found.truncate(limit);
        Ok(found)
    }

    /// Deletes a conversation and its history. Returns whether it existed.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn delete(&self, id: ScopeId) -> Result<bool, ToolError> {
        self.ledger.forget(&name(id)).await
    }

    async fn document(&self, id: ScopeId) -> Result<Document, ToolError> {
        self.ledger.head(&name(id)).await?.ok_or_else(|| {
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
