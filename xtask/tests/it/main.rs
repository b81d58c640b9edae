//! The chores as their user sees them, and every rule of the tree catching a violation on a small made tree.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod bench;
mod changed;
mod command_line;
mod made_tree;
mod report;
mod suite;
mod tidy;
