//! The project's own chores: what must hold of the tree, what a change must pass, what is measured.
//!
//! # Invariants
//!
//! - The rules are data: tables with a reason in each row ([`tidy::tables`]). A rule without a row has no exception.
//! - Every complaint names the place, the rule, and what to do.
//! - `tidy` reads only. It builds nothing and starts nothing but `git` and `cargo metadata`.
//! - Nothing that could not be checked passes in silence: it is a named skip with its reason.
//! - The last line on standard output of `cargo xtask test` is `N passed, M failed, K skipped`; everything else that it
//!   says goes to standard error or before that line.
//! - Deliberately absent: any dependency on a crate of the workspace (the chores must work while those do not build),
//!   a network, and configuration: there is one way to run each chore.

#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the chores are a command of the developer: they start Cargo and talk to a terminal"
)]

pub mod attack;
pub mod bench;
pub mod command;
pub mod dist;
pub mod lines;
pub mod publish;
pub mod site;
pub mod source;
pub mod suite;
pub mod tidy;
pub mod workspace;

use std::path::PathBuf;

/// The result of a chore; the error is a sentence for the developer.
pub type Result<T> = std::result::Result<T, String>;

/// The directory of the checkout that this program was built from.
pub fn root() -> PathBuf {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    own.parent().map_or(own.clone(), PathBuf::from)
}
