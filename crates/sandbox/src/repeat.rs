//! Repetition of runs whose changes conflict with those of another run.

use std::time::Duration;

use crate::{Sandbox, Stdin};

/// The longest attempt that is repeated: others wait while the second one has the directory alone.
pub(crate) const MAX_REPEATED: Duration = Duration::from_secs(5);

/// Whether [`Sandbox::run`] repeats a program whose changes of a host directory conflict with another run's.
///
/// Nothing of the first attempt is applied. The second one starts with the directory as it is then, and no other run
/// applies changes meanwhile: the result is that of two runs in order. A program with egress, writable host
/// directories or an input file is never repeated, because the first attempt may have had other effects; nor is one that
/// ran for more than 5 seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Repeat {
    /// Never: conflicting changes are denied ([`crate::DenialReason::Conflict`]).
    #[default]
    Never,
    /// If it printed nothing, so that the caller's output has nothing twice.
    IfSilent,
    /// Always. The caller receives the events of both attempts, and the outcome of the second one.
    Always,
}

impl Sandbox {
    /// Whether the changes of an attempt are its only effect.
    pub(crate) fn is_closed(&self) -> bool {
        // A file may be a pipe, which gives its content once.
        self.egress.is_none() && self.read_write.is_empty() && !matches!(self.stdin, Stdin::File(_))
    }
}
