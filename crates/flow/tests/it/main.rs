//! Plans, runs, crashes and random plans.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod builder;
mod calls;
mod crash;
mod evaluation;
mod formats;
mod misuse;
mod observed;
mod orchestrator;
mod plans;
mod resume;
mod rows;
mod runs;
mod table;
mod tools;
mod whole;
