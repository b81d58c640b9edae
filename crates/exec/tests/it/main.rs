//! Rules of the protocol.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests; what is skipped is printed"
)]

// The attribute macros emit paths that begin with `::toolpost`.
extern crate toolpost_core as toolpost;

#[cfg(feature = "client")]
mod client;
#[cfg(feature = "command")]
mod command;
#[cfg(any(feature = "client", feature = "command", feature = "worker"))]
mod host;
#[cfg(feature = "scaffold")]
mod scaffold;
mod server;
#[cfg(feature = "worker")]
mod worker;
