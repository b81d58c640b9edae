//! The built-in tools through a real toolbox.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests; what is skipped is printed"
)]

// The attribute macros emit paths that begin with `::toolpost`.
extern crate toolpost_core as toolpost;

mod aliases;
mod arithmetic;
#[cfg(feature = "http")]
mod certificates;
mod code;
mod code_execution;
mod code_pool;
mod code_sessions;
mod encodings;
mod hashing;
mod hostile;
#[cfg(feature = "compat")]
mod limits;
mod listing;
mod output_files;
mod permitted;
mod reading;
#[cfg(feature = "http")]
mod requests;
#[cfg(feature = "http")]
mod searching;
mod specs;
mod statistics;
mod support;
mod transfer;
mod writing;
