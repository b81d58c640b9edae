//! The built-in tools through a real toolbox.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests; what is skipped is printed"
)]

mod arithmetic;
mod code;
mod encodings;
mod hostile;
mod listing;
mod reading;
mod specs;
mod support;
mod writing;
