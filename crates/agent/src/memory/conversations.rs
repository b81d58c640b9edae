//! The conversations that are kept: finding, copying and removing them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;
use toolpost_core::{DocStore, Document, ScopeId, Secret, Timestamp, ToolError, Usage};
use toolpost_llm::Scrubber;

use super::conversation::{Conversation, Head};
use super::ledger::{Ledger, MOST_LISTED};

/// Where conversations are kept, by their names.
const PREFIX: &str = "conversations/";
/// Which conversation of a folder was used last, by the folder.
const LAST: &str = "conversation-last/";

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
/// let again = conversations.last("/srv/sales").await?.expect("it was kept");
/// let outcome = again.run(&agent, "Are you there?").finish().await;
/// assert_eq!(outcome.text(), "Still here.");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Conversations {
    ledger: Ledger,
}

/// What a conversation begins with.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct NewConversation {
    /// Its title, of at most 80 characters. Default: the beginning of the first prompt.
    pub title: Option<String>,
    /// The folder, project or other place that it belongs to. Default: none.
    pub folder: Option<String>,
}

impl NewConversation {
    /// Gives it a title.
    #[must_use]
    pub fn titled(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Says which folder it belongs to; see [`Conversations::last`].
    #[must_use]
    pub fn in_folder(mut self, folder: impl Into<String>) -> Self {
        self.folder = Some(folder.into());
        self
    }
}

/// Where a conversation was copied from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forked {
    /// The other conversation.
    pub from: ScopeId,
    /// How many of its prompts were taken over.
    pub prompts: usize,
}

/// Where a conversation stands.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ConversationSummary {
    /// Its name.
    pub id: ScopeId,
    /// Its title.
    pub title: String,
    /// The folder that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// The model that answered last; empty before the first answer.
    pub model: String,
    /// When it was begun.
    pub created: Timestamp,
    /// When something was added last.
    pub updated: Timestamp,
    /// How many turns it has.
    pub turns: usize,
    /// How many prompts it has.
    pub prompts: usize,
    /// What it consumed.
    pub usage: Usage,
    /// What it cost in US dollars; absent if that is unknown of any of its runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// The conversation that it is a copy of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<Forked>,
}

impl ConversationSummary {
    pub(super) fn of(id: ScopeId, head: &Head) -> Self {
        Self {
            id,
            title: head.title.clone(),
            folder: head.folder.clone(),
            model: head.model.clone(),
            created: head.created,
            updated: head.updated,
            turns: head.turns,
            prompts: head.prompts,
            usage: head.usage.clone(),
            cost_usd: (!head.cost_unknown).then_some(head.cost_usd),
            forked_from: head.forked_from.clone(),
        }
    }
}

impl Conversations {
    /// The conversations that a store keeps.
    pub fn new(store: Arc<dyn DocStore>) -> Self {
        Self { ledger: Ledger::new(store, Arc::default()) }
    }

    /// Masks these secrets in all that is kept from now on. Default: none.
    #[must_use]
    pub fn with_secrets(self, secrets: Vec<Secret>) -> Self {
        Self { ledger: self.ledger.with_scrubber(Arc::new(Scrubber::new(secrets))) }
    }

    /// A new conversation. Nothing is kept of it before its first run.
    pub fn create(&self, new: NewConversation) -> Conversation {
        let id = ScopeId::new();
        // A part of a secret would not be known for it.
        let title = new.title.map(|title| self.ledger.scrubber().scrub(title));
        Conversation::begin(self.ledger.clone(), id, name(id), Head::new(title.as_deref(), new.folder))
    }

    /// A conversation by its name.
    ///
    /// # Errors
    /// `NOT_FOUND` if there is none, `DEPENDENCY` if it cannot be read, and those of the store.
    pub async fn open(&self, id: ScopeId) -> Result<Conversation, ToolError> {
        Conversation::read(self.ledger.clone(), id, self.document(id).await?, usize::MAX).await
    }

    /// The name of the one conversation whose name begins so.
    ///
    /// # Errors
    /// `NOT_FOUND` if there is none, `INVALID_INPUT` if there are several, and those of the store.
    pub async fn find(&self, start: &str) -> Result<ScopeId, ToolError> {
        let found = self.ledger.find(PREFIX, start, "conversation").await?;
        found.parse().map_err(|error: String| ToolError::internal(error))
    }

    /// The conversation of a folder that was used last.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), but for `NOT_FOUND`.
    pub async fn last(&self, folder: &str) -> Result<Option<Conversation>, ToolError> {
        if let Some(pointer) = self.ledger.head(&pointer(folder)).await?
            && let Some(id) = pointer.value.get("id").and_then(|id| id.as_str()?.parse().ok())
            && let Some(document) = self.ledger.head(&name(id)).await?
            && Head::read(&document)?.folder.as_deref() == Some(folder)
        {
            return Conversation::read(self.ledger.clone(), id, document, usize::MAX).await.map(Some);
        }
        // The last one was deleted: another of the folder is the last now.
        match self.list(Some(folder), 1).await?.first() {
            Some(summary) => self.open(summary.id).await.map(Some),
            None => Ok(None),
        }
    }

    /// A copy of a conversation that goes its own way, after all of its prompts or after the first so many. It needs the
    /// original no longer.
    ///
    /// # Errors
    /// `INVALID_INPUT` if it has not as many prompts, and those of [`open`](Self::open).
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
        copy.keep_copy(&exchanges, &original.turns()).await?;
        Ok(copy)
    }

    /// What there is, of one folder or of all, the one that was used last first, at most `limit`. Of more than 5,000
    /// conversations the oldest are passed over.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn list(
        &self,
        folder: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ConversationSummary>, ToolError> {
        let mut found = Vec::new();
        for document_name in self.ledger.names(PREFIX, MOST_LISTED).await? {
            let Some(Ok(id)) = document_name.strip_prefix(PREFIX).map(str::parse) else { continue };
            let Some(document) = self.ledger.head(&document_name).await? else { continue };
            // One that cannot be read must not hide the others.
            let Ok(head) = Head::read(&document) else { continue };
            if folder.is_none() || head.folder.as_deref() == folder {
                found.push(ConversationSummary::of(id, &head));
            }
        }
        found.sort_by(|a, b| b.updated.cmp(&a.updated).then_with(|| b.id.cmp(&a.id)));
        found.truncate(limit);
        Ok(found)
    }

    /// Removes a conversation for good. Returns whether there was one.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn delete(&self, id: ScopeId) -> Result<bool, ToolError> {
        self.ledger.forget(&name(id)).await
    }

    async fn document(&self, id: ScopeId) -> Result<Document, ToolError> {
        self.ledger.head(&name(id)).await?.ok_or_else(|| {
            ToolError::not_found(format!("there is no conversation `{id}`"))
                .suggest("List the conversations that are kept.")
        })
    }
}

/// Remembers which conversation of a folder was used last.
pub(super) async fn remember_last(ledger: &Ledger, folder: &str, id: ScopeId) -> Result<(), ToolError> {
    let name = pointer(folder);
    let document =
        ledger.head(&name).await?.unwrap_or_else(|| Document { id: name, version: 0, value: Arc::default() });
    // Whoever was faster has just used another conversation of the folder: that is as good.
    let value = json!({ "v": 1, "id": id });
    if *document.value != value {
        drop(ledger.commit(document, value, None).await);
    }
    Ok(())
}

fn name(id: ScopeId) -> String {
    format!("{PREFIX}{id}")
}

/// The name of the document that knows the last conversation of a folder. A folder's name may be too long for it, and
/// have any characters (FNV-1a, 128 bits).
fn pointer(folder: &str) -> String {
    let hash = folder.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    format!("{LAST}{hash:032x}")
}

impl std::fmt::Debug for Conversations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conversations").finish_non_exhaustive()
    }
}
