//! Requests over HTTP: who may be connected to, attempts, waits, limits.

pub(crate) mod certificates;
pub(crate) mod client;
pub(crate) mod exchange;
pub(crate) mod retry;
pub(crate) mod sse;
