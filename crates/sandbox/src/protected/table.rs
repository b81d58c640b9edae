//! The table of names: one row for each name or shape that a program obeys.

mod denied;
mod marked;

use super::{Mark, Protection};

pub(super) use denied::DENIED;
pub(super) use marked::MARKED;

/// A name, the program that obeys it, and whether code may write it.
#[derive(Debug)]
pub(super) struct Row {
    /// Names in lower case, separated by `/`; they match anywhere in a path, with everything beneath. In each name, one
    /// `*` stands for any characters.
    pub(super) pattern: &'static str,
    pub(super) verdict: Verdict,
    pub(super) program: &'static str,
    /// The rest of a sentence that begins with the program.
    pub(super) does: &'static str,
    /// A manual page, or the documentation or source of the program.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for readers of the table; a test checks that each row has one")
    )]
    pub(super) source: &'static str,
}

/// Whether code may write a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Never.
    Denied(Protection),
    /// Only as a directory: a file would name another directory.
    DirectoryOnly(Protection),
    /// A new entry only.
    NewOnly(Protection, Mark),
    /// Always.
    Marked(Mark),
    /// Always. The directory is marked once, for everything beneath.
    Contents(Mark),
}

const fn deny(
    pattern: &'static str,
    kind: Protection,
    program: &'static str,
    does: &'static str,
    source: &'static str,
) -> Row {
    Row { pattern, verdict: Verdict::Denied(kind), program, does, source }
}

const fn once(
    pattern: &'static str,
    kind: Protection,
    mark: Mark,
    program: &'static str,
    does: &'static str,
    source: &'static str,
) -> Row {
    Row { pattern, verdict: Verdict::NewOnly(kind, mark), program, does, source }
}

const fn mark(
    pattern: &'static str,
    mark: Mark,
    program: &'static str,
    does: &'static str,
    source: &'static str,
) -> Row {
    Row { pattern, verdict: Verdict::Marked(mark), program, does, source }
}

const fn contents(
    pattern: &'static str,
    mark: Mark,
    program: &'static str,
    does: &'static str,
    source: &'static str,
) -> Row {
    Row { pattern, verdict: Verdict::Contents(mark), program, does, source }
}
