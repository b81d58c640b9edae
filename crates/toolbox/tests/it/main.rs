//! The call path from outside.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tools and helpers of tests")]

// The attribute macros emit paths that begin with `::toolpost`.
extern crate toolpost_core as toolpost;

mod adversary;
mod aliases;
mod authoring;
mod framework;
mod limits;
mod shapes;
mod stages;
mod state;
