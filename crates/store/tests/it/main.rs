//! The store from outside: one file, several processes, hostile files.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests; what is skipped is printed")]

mod documents;
mod files;
mod limits;
mod model;
mod processes;
mod support;
mod tasks;
