//! The call path: every call is resolved, checked, permitted, queued, run, limited and recorded, in one place.
//!
//! [`Toolbox`] holds tools and sources of tools, and is itself a source, so that toolboxes nest. Read the module
//! `path` first: it is the whole way of a call, top to bottom; each stage is a small module beside it.
//!
//! # Invariants
//!
//! - There is one way to run a tool, and every call takes all of it: no front, no nested call and no test goes round.
//! - Every call leaves exactly one record, also when its future is dropped in the middle.
//! - Nothing here is unbounded: not the queue, not the cache, not the records, not what a model is sent.
//! - No task is spawned for an inline tool; a blocking tool takes one thread of the runtime's pool.
//! - Knows no protocol, no provider, no process and no file. State that outlives a call is kept behind
//!   [`DocStore`](toolpost_core::DocStore); here is only the store in memory.
//! - What an attempt makes of its state counts when it has succeeded in time, all of it or nothing; a commit that has
//!   begun is finished and recorded, whoever goes away.
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

pub use self::builder::{Settings, ToolboxBuilder};
pub use self::state::MemoryStore;
pub use self::toolbox::Toolbox;
pub use self::usage::ToolUsage;
