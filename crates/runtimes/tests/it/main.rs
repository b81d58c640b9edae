//! Packages, environments and languages of this host.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "test helpers panic on failure and print what they skip"
)]

mod languages;
mod packages;
