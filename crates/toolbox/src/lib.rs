//! The call path: every call is resolved, checked, permitted, queued, run, limited and recorded, in one place.
//!
//! [`Toolbox`] holds tools and sources of tools, and is itself a source, so that toolboxes nest. Read the module
//! `path` first: it has all stages of a call in order. Each stage is a module beside it.
//!
//! # Invariants
//!
//! - There is one way to run a tool. Every call takes all stages: from a front, from another tool, and from a test.
//! - Every call leaves exactly one record, also if its future is dropped.
//! - The queue, the cache, the records and the outputs for models are bounded.
//! - No task is spawned for an inline tool; a blocking tool takes one thread of the runtime's pool.
//! - The crate knows no protocol, provider, process or file. [`DocStore`](toolpost_core::DocStore) persists state;
//!   this crate has only the store in memory.
//! - The changes of an attempt to its state are committed together, and only if the attempt succeeds in time. A
//!   running commit is finished and recorded even if the caller drops the call.
#![forbid(unsafe_code)]

mod builder;
mod offers;
mod path;
mod registry;
mod shared;
mod state;
mod toolbox;
mod usage;
mod view;
mod waits;

pub use self::builder::{ToolboxBuilder, ToolboxSettings};
pub use self::state::MemoryStore;
pub use self::toolbox::Toolbox;
pub use self::usage::ToolUsage;
