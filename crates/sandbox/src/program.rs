//! The program of a run, its input and its workspace.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::{Error, Language, Origin, Ready};

/// The program of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Program {
    /// A program and its arguments. A name without a slash is searched for in the search path.
    Argv(Argv),
    /// Source code. The value of its last expression becomes [`crate::Outcome::value`].
    Code {
        /// The language.
        language: Language,
        /// The source text.
        source: String,
    },
    /// A program from [`crate::Sandbox::build`].
    Ready(Ready),
}

impl Program {
    /// A program and its arguments, which a model or another untrusted source may have chosen.
    ///
    /// An absolute path of the program must lie in the workspace, a system directory, a toolchain root or a granted
    /// path.
    pub fn argv<I, S>(arguments: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: Into<OsString>,
    {
        let words = arguments.into_iter().map(Into::into).collect();
        Self::Argv(Argv { words, origin: Origin::Derived })
    }

    /// A program that the operator named: on the command line or in a trusted file.
    ///
    /// A program outside the workspace is shown with its environment, installation or package.
    pub fn operator_argv<I, S>(arguments: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: Into<OsString>,
    {
        let words = arguments.into_iter().map(Into::into).collect();
        Self::Argv(Argv { words, origin: Origin::Operator })
    }

    /// Source code of a language.
    pub fn code(language: Language, source: impl Into<String>) -> Self {
        Self::Code { language, source: source.into() }
    }
}

/// A program with its arguments, and who named the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argv {
    words: Vec<OsString>,
    origin: Origin,
}

impl Argv {
    /// Who named the program.
    pub fn origin(&self) -> Origin {
        self.origin
    }
}

impl std::ops::Deref for Argv {
    type Target = [OsString];

    fn deref(&self) -> &[OsString] {
        &self.words
    }
}

/// The standard input of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stdin {
    /// Empty input.
    #[default]
    Empty,
    /// These bytes.
    Bytes(Vec<u8>),
    /// The content of a host file. The program reads a pipe, never the file.
    File(PathBuf),
}

impl Stdin {
    /// Opens the input; none if it is empty. A file must be regular.
    pub fn open(&self) -> Result<Option<Box<dyn Read>>, Error> {
        let fail = |path: &Path, source| Error::File { action: "read input", path: path.to_owned(), source };
        Ok(match self {
            Self::Empty => None,
            Self::Bytes(bytes) => Some(Box::new(std::io::Cursor::new(bytes.clone()))),
            Self::File(path) => {
                let file = crate::platform::open_regular(path).map_err(|source| fail(path, source))?;
                Some(Box::new(file))
            }
        })
    }
}

/// The content of an upload. A backend supports all forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// These bytes.
    Bytes(Vec<u8>),
    /// A copy of a regular file of the host.
    Path(PathBuf),
}

/// The workspace of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Workspace {
    /// An empty directory of limited size that is removed with the outcome.
    #[default]
    Fresh,
    /// An existing host directory behind a private layer.
    ///
    /// The layer takes the program's writes; apply moves allowed changes to the host
    /// ([`crate::Outcome::applied`]). Where no layer is possible, a private copy of the directory takes its
    /// place: the program starts in it, and without a mount namespace the variable `TOOLPOST_WORKDIR` names
    /// it. At level `minimal` there is no layer: the program writes to the
    /// directory itself, as the report notes.
    Host(PathBuf),
    /// An existing host directory that the program writes to directly.
    ///
    /// Existing protected paths are read-only. The program can create missing ones that host programs execute
    /// or obey.
    LiveHost(PathBuf),
    /// An existing host directory, read-only. It is never scanned, so its size costs nothing.
    ReadOnlyHost(PathBuf),
}
