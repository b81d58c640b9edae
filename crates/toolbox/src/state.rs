//! State that outlives a call: stores, exclusive access, and commits.

pub(crate) mod lanes;
mod memory;
mod store;
pub(crate) mod transaction;

pub use self::memory::MemoryStore;
pub(crate) use self::store::{Limited, OfCall, sleep};
