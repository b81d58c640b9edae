//! The lines of the protocol as types.
//!
//! | module | lines |
//! |---|---|
//! | [`dialect`] | dialect 0.1: answers to `--discover` and `--manifest`, and the lines of streams, sessions, sampling and notifications |
//! | [`frame`] | resident mode: many calls over one process, each line an object with `v` and `id` |
//! | [`outcome`] | results: parsed envelopes, and outputs and errors in frames |
//! | [`line`](mod@line) | a byte stream as lines of bounded length |

pub mod dialect;
pub(crate) mod documents;
pub(crate) mod explained;
pub mod frame;
pub mod line;
pub mod outcome;

/// Whether a field has its default, so that the line omits it.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
