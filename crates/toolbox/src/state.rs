//! State that outlives a call: where it is kept, whose turn it is, and how what a call has made of it is committed.

pub(crate) mod lanes;
mod memory;
mod store;
pub(crate) mod transaction;

pub use self::memory::MemoryStore;
pub(crate) use self::store::{Limited, OfCall, sleep};
