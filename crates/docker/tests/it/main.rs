//! The Docker backend against a daemon of its own.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::panic,
    reason = "test helpers panic on failure and print what they skip"
)]

mod daemon;
#[path = "../../../sandbox/tests/it/egress.rs"]
#[expect(dead_code, reason = "the tests of the sandbox use the rest")]
mod egress;
mod errors;
mod folders;
mod images;
mod live;
mod registry;
mod runs;
#[path = "../../../sandbox/tests/it/support.rs"]
#[expect(dead_code, reason = "the tests of the sandbox use the rest")]
mod support;
#[cfg(feature = "tls")]
mod tls;
mod tunnel;
