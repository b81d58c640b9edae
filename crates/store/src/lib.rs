//! Versioned documents in one SQLite file: durable, with their history, shared by several processes.
//!
//! [`Store`] implements the core's [`DocStore`](toolpost_core::DocStore). Read `writer` first: it is how a commit
//! becomes durable; `history` is how a document is read back; `schema` is what the file looks like.
//!
//! # Invariants
//!
//! - A commit that was answered with `Done` is on the disk: the write-ahead log was flushed before the answer.
//! - One thread writes. It takes all that waits, makes one transaction of it, and answers everybody; within it each
//!   commit is its own compare-and-set.
//! - Between processes the file's write lock decides. What this process remembers of a document is forgotten as
//!   soon as another connection has written.
//! - A change is never rewritten, and removed only with its whole document, which is then overwritten in the file.
//!   Every 64th version, and each whose changes have grown larger
//!   than the document, is kept whole, so that a version is at most 63 patches away from a whole one.
//! - Nothing is unbounded: not a document, not the queue of commits, not the wait for a lock, not the cache.
//! - Documents, and tasks of a server ([`TaskFile`], a file of its own that one process has at a time) only. Knows no
//!   tool, no call path, and nothing of what a document or a task means.
#![forbid(unsafe_code)]

mod fault;
mod forget;
mod history;
mod options;
mod readers;
mod schema;
mod store;
mod tasks;
mod writer;

pub use self::options::Options;
pub use self::store::Store;
pub use self::tasks::TaskFile;
