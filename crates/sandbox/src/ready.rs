//! A program that this crate found or built itself, with everything that it needs to run.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use crate::{Language, Outcome, Program};

/// A program that was built, or found with what it needs: [`crate::Sandbox::build`] makes one. Only the backend
/// [`crate::Processes`] runs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    /// The path by which it is started.
    pub(crate) path: PathBuf,
    /// What must be visible besides the system folders.
    pub(crate) needs: Vec<PathBuf>,
    /// What it is given after its name.
    pub(crate) arguments: Vec<OsString>,
    /// What stands on descriptor 5.
    pub(crate) payload: Option<Payload>,
    /// The language of the code that it was made of.
    pub(crate) language: Option<Language>,
}

impl Ready {
    /// The language of the code from which it was built.
    pub fn language(&self) -> Option<Language> {
        self.language
    }
}

/// Content that a program gets as a descriptor and no path of the host.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Payload {
    pub(crate) content: Arc<[u8]>,
    pub(crate) is_executable: bool,
}

impl std::fmt::Debug for Payload {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Payload({} bytes)", self.content.len())
    }
}

/// What came of building code.
#[derive(Debug)]
#[non_exhaustive]
pub enum Build {
    /// A program that can run as often as wanted. What needs no build comes back as it was.
    Ready {
        /// The program.
        program: Program,
        /// Remarks for a person: what built it and in what time, warnings of the compiler.
        notes: Vec<String>,
    },
    /// It was not built: the verdict is that of the compiler, its messages are in [`Outcome::stderr`], and the first
    /// note of the report begins with `build`.
    Failed(Box<Outcome>),
}
