//! A program that this crate built or found, with everything that it needs to run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Language, Need, Outcome, Program};

/// A program from [`crate::Sandbox::build`]. Only the backend [`crate::Processes`] runs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    /// The path to execute.
    pub(crate) path: PathBuf,
    /// Paths to mount besides the system directories.
    pub(crate) needs: Vec<Need>,
    /// The arguments after its name.
    pub(crate) arguments: Vec<OsString>,
    /// The content of descriptor 5.
    pub(crate) payload: Option<Payload>,
    /// The language of its source code.
    pub(crate) language: Option<Language>,
}

impl Ready {
    /// The language of its source code.
    pub fn language(&self) -> Option<Language> {
        self.language
    }

    /// The path to execute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds arguments after the others.
    pub fn extend<T: Into<OsString>>(&mut self, arguments: impl IntoIterator<Item = T>) {
        self.arguments.extend(arguments.into_iter().map(Into::into));
    }

    /// Starts the program and its script from a private copy of their directory.
    pub(crate) fn relocate(&mut self, directory: &Path, copy: &Path) {
        let moved = |path: &Path| Some(copy.join(path.strip_prefix(directory).ok()?));
        if let Some(path) = moved(&self.path) {
            self.path = path;
        }
        if let Some(first) = self.arguments.first_mut()
            && let Some(path) = moved(Path::new(first))
        {
            *first = path.into();
        }
    }

    /// Another program without arguments that sees the same paths.
    #[must_use]
    pub fn replaced_by(self, path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), arguments: Vec::new(), ..self }
    }
}

/// Content that a program gets as a descriptor instead of a host path.
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

/// The result of a build.
#[derive(Debug)]
#[non_exhaustive]
pub enum Build {
    /// A program for any number of runs. A program that needs no build is unchanged.
    Ready {
        /// The program.
        program: Program,
        /// Notes for a person: the compiler, its time and its warnings.
        notes: Vec<String>,
    },
    /// The build failed. The verdict is that of the compiler, [`Outcome::stderr`] has its messages, and the
    /// first note of the report begins with `build`.
    Failed(Box<Outcome>),
}
