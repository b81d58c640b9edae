//! Servers as sources of tools.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests; what is skipped is printed"
)]

mod conformance;
mod everyday;
mod faults;
#[expect(
    deprecated,
    clippy::unnecessary_wraps,
    clippy::needless_pass_by_value,
    clippy::disallowed_methods,
    reason = "servers of the older era do all of it, and this one ends itself"
)]
mod fixture;
mod foreign;
mod hostile;
mod hostile_http;
mod oauth;
mod options;
mod own;
mod support;
mod websocket;
