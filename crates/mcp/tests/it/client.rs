//! MCP servers as sources of tools.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "test helpers; skipped tests print a line"
)]

mod calls;
mod conformance;
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
mod oauth;
mod programs;
mod reconnects;
mod round_trip;
mod support;
mod websocket;
