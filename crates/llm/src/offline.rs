//! Models without a provider: scripts, recordings, functions, generated answers.

mod diff;
pub(crate) mod events;
mod files;
pub(crate) mod function;
pub(crate) mod replay;
pub(crate) mod reply;
pub(crate) mod schema;
pub(crate) mod script;
pub(crate) mod scrub;
