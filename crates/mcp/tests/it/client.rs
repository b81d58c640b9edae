//! MCP servers as sources of tools.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "test helpers; skipped tests print a line"
)]

mod calls;
mod conformance;
mod deviations;
#[expect(
    deprecated,
    clippy::unnecessary_wraps,
    clippy::disallowed_methods,
    reason = "the fixture covers deprecated methods and exits its own process"
)]
mod fixture;
mod foreign_servers;
mod hostile;
mod hostile_http;
mod http_answers;
mod oauth;
mod programs;
mod reconnects;
mod round_trip;
mod support;
mod websocket;
