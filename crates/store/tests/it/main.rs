//! Tests of the store through its public interface: one file, several processes, hostile files.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "test helpers; skipped tests print a line")]

mod documents;
mod files;
mod limits;
mod model;
mod processes;
mod support;
mod tasks;
