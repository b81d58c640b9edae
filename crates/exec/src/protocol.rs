//! The lines of the protocol, as types.
//!
//! | module | lines |
//! |---|---|
//! | [`dialect`] | what an executable prints for `--discover` and `--manifest`, and the lines of streams, sessions, sampling and notifications: dialect 0.1 |
//! | [`frame`] | the resident mode: many calls over one process, every line an object with `v` and `id` |
//! | [`outcome`] | results: envelopes read back, outputs and errors as frames carry them |
//! | [`line`](mod@line) | lines of bounded length out of bytes |

pub mod dialect;
pub(crate) mod documents;
pub(crate) mod explained;
pub mod frame;
pub mod line;
pub mod outcome;
