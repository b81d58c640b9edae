//! Stored conversations and runs.
//!
//! Both are documents of a [`DocStore`](toolpost_core::DocStore). The document has the current figures; the event of each
//! change has the new turns, calls or exchanges. Nothing is written twice, and a commit is atomic: a killed process loses
//! at most the answer in progress.
//!
//! A [`Scrubber`](toolpost_llm::Scrubber) masks the secrets of a store in everything stored, in all forms that it knows.

mod conversation;
mod conversations;
mod log;
mod persistence;
mod runs;

pub(crate) use self::conversation::Ended;
pub use self::conversation::{Conversation, ConversationSummary, Exchange, Forked};
pub use self::conversations::Conversations;
pub(crate) use self::persistence::Persistence;
pub use self::runs::{RunStats, RunSummary, Runs, StoredRun, StoredText};
