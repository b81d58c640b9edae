//! Requests over HTTP: client, attempts, streams.

pub(crate) mod attempts;
pub(crate) mod certificates;
pub(crate) mod client;
pub(crate) mod exchange;
pub(crate) mod retry;
pub(crate) mod sse;
