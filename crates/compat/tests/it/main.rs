//! Imported descriptions, through a real toolbox.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod importing;
