//! The gateway and the catalog from outside.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tools and helpers of tests")]

// The attribute macros emit paths that begin with `::toolpost`.
extern crate toolpost_core as toolpost;

mod catalog;
mod filtered;
mod gateway;
mod lazy;
mod merged;
mod named;
mod nested;
mod pinned;
mod reconnecting;
mod searchable;
mod upstream;
