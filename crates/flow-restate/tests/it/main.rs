//! Runs on a real Restate server: the table of plans, killed workers, killed servers.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests"
)]

mod one_node;
#[expect(dead_code, reason = "the driver of one machine uses the rest")]
#[path = "../../../flow/tests/it/rows/mod.rs"]
mod rows;
mod server;
mod table;
mod three_nodes;
mod worker;
