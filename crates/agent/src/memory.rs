//! What outlives a run: conversations that can be gone on with, and runs that can be looked at and played again.
//!
//! Both are kept in a [`DocStore`](toolpost_core::DocStore): a document says where a conversation or run stands, and each
//! of its changes carries, as its event, what was added. So nothing is written twice, a commit is all or nothing, and a
//! killed process leaves what it had committed: at most the answer that was being made is lost.
//!
//! What is kept is scrubbed of the secrets that the stores are told, in all the forms that a [`Scrubber`] knows.
//!
//! [`Scrubber`]: toolpost_llm::Scrubber

mod backlog;
mod conversation;
mod conversations;
mod keeper;
mod ledger;
mod runs;

pub(crate) use self::conversation::Ended;
pub use self::conversation::{Compacted, Conversation, Exchange};
pub use self::conversations::{ConversationSummary, Conversations, Forked, NewConversation};
pub(crate) use self::keeper::Keeper;
pub use self::runs::{RunStats, RunSummary, Runs, StoredRun};
