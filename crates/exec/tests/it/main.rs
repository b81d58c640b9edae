//! What the protocol holds.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests; what is skipped is printed"
)]

mod command;
mod scaffold;
