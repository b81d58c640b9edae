//! Tests of the provider wires: recorded traffic, a loopback server, scripts and recordings.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "this crate is tests alone, their helpers included; they print what they counted"
)]

mod answer_tool;
mod anthropic_tools;
mod bounds;
mod capabilities;
mod catalog;
mod deviations;
mod errors;
mod failures;
mod fallback;
mod fidelity;
mod files;
mod gemini;
mod official_types;
mod offline;
mod recorded;
mod responses;
mod schema;
mod server_quirks;
mod support;
mod surrogates;
mod tls;
mod translated;
mod unusual_answers;
mod usage;
mod wire;
