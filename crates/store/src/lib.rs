//! Versioned documents in one SQLite file: durable, with their history, shared by several processes.
//!
//! [`Store`] implements the core's [`DocStore`](toolpost_core::DocStore). Read `writer` first, which makes
//! commits durable, then `history`, which reads documents back, and `schema`, the file format.
//!
//! # Invariants
//!
//! - A commit answered with `Done` is on the disk: the write-ahead log is flushed before the answer.
//! - One thread writes. It batches all queued commits into one transaction; within it each commit is its own
//!   compare-and-set.
//! - The file's write lock orders processes. The cache of this process is cleared as soon as another
//!   connection has written.
//! - A change is never rewritten, and removed only with its whole document, which is then overwritten in the
//!   file. Every 64th version, and each version whose patches have grown larger than the document, is stored
//!   whole, so a version is at most 63 patches away from a whole one.
//! - Documents, the queue of commits, the wait for a lock, and the cache are bounded.
//! - The crate stores documents, and tasks of a server ([`TaskFile`], an exclusive file per process). It
//!   knows no tool, no call path and no meaning of a document or a task.
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
