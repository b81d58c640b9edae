//! What is run, and what it is given.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::{Language, Ready};

/// What a run executes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Program {
    /// A program and its arguments. A name without a slash is looked up in the search path.
    Argv(Vec<OsString>),
    /// Source code of a language. The value of a last expression comes back as [`crate::Outcome::value`].
    Code {
        /// The language.
        language: Language,
        /// The source text.
        source: String,
    },
    /// A program that [`crate::Sandbox::build`] made.
    Ready(Ready),
}

impl Program {
    /// A program and its arguments.
    pub fn argv<I, S>(arguments: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: Into<OsString>,
    {
        Self::Argv(arguments.into_iter().map(Into::into).collect())
    }

    /// Source code of a language.
    pub fn code(language: Language, source: impl Into<String>) -> Self {
        Self::Code { language, source: source.into() }
    }
}

/// What the program reads from standard input.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stdin {
    /// Nothing: the end at once.
    #[default]
    Empty,
    /// These bytes, then the end.
    Bytes(Vec<u8>),
    /// The content of a file of the host, then the end. The program gets the bytes, never the file.
    File(PathBuf),
}

/// Where the content of an uploaded file comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// These bytes.
    Bytes(Vec<u8>),
    /// A copy of a regular file of the host.
    Path(PathBuf),
}

/// Where the program works.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Workspace {
    /// An empty folder of limited size that goes away with the outcome.
    #[default]
    Fresh,
    /// An existing folder of the host, writable for the program. Protected paths ([`crate::protection`]) stay as
    /// they are.
    Host(PathBuf),
    /// An existing folder of the host that the program can read and not write. Nothing in it is looked through before
    /// and after the run, so that its size costs nothing.
    ReadOnlyHost(PathBuf),
}
