//! Tests of tool programs: command line, streams, sessions, sampling, notifications and the resident mode.

mod program;
mod resident;
mod table;
mod tools;
mod transcripts;
