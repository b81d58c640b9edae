//! The server, as clients see it.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests; what is skipped is printed"
)]

mod asking;
mod bad_input;
mod changes;
mod conformance;
#[cfg(feature = "client")]
mod gateway;
mod http;
mod oauth;
mod peers;
mod sessions;
mod streams;
mod support;
mod tasks;
mod tasks_kept;
mod tls;
mod websocket;
