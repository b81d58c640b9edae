//! Models without a provider: a script that anyone can write, a recording that is given back.

mod diff;
mod files;
pub(crate) mod function;
pub(crate) mod replay;
pub(crate) mod said;
pub(crate) mod say;
pub(crate) mod schema;
pub(crate) mod script;
pub(crate) mod scrub;
