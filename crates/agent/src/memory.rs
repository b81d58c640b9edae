//! Stored conversations and runs.
//!
//! Both are documents of a [`DocStore`](toolpost_core::DocStore). The document has the current figures; the event of each
//! change has what was added. Nothing is written twice, and a commit is atomic: a killed process loses at most the answer
//! in progress.
//!
//! A [`Scrubber`] masks the secrets of a store in everything stored, in all forms that it knows.
//!
//! [`Scrubber`]: toolpost_llm::Scrubber

mod backlog;
mod conversation;
mod conversations;
mod head;
mod keeper;
mod latest;
mod ledger;
mod runs;

pub(crate) use self::conversation::Ended;
pub use self::conversation::{Conversation, Exchange};
pub use self::conversations::{Conversations, NewConversation};
pub use self::head::{ConversationSummary, Forked};
pub(crate) use self::keeper::Keeper;
pub use self::runs::{RunStats, RunSummary, Runs, StoredRun};
