//! The server, as clients see it.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "test helpers; skipped tests print a line"
)]

mod bad_input;
mod changes;
mod clients;
mod conformance;
mod foreign_clients;
#[cfg(feature = "client")]
mod gateway;
mod http;
mod oauth;
mod questions;
mod sessions;
mod streams;
mod support;
mod task_store;
mod tasks;
mod tls;
mod websocket;
