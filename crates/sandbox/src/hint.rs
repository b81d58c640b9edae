//! Fixes of errors and denials as values.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A fix that each front renders in its own terms, such as an option of a command or an argument of a function.
///
/// Its text names no front.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum SandboxHint {
    /// Choose a supported level, or allow a lower one.
    ChooseLevel,
    /// Check the sandbox on this host.
    CheckHost,
    /// Name the program by its path, or show its directory.
    ShowProgram,
    /// Show the interpreter and the libraries of a program.
    ShowInterpreter,
    /// Let the program write to the directory itself, or choose a smaller one.
    WriteLive,
    /// Run without a review, or choose a smaller directory.
    OmitReview,
    /// Allow a host for a placeholder, or grant the value itself.
    AllowPlaceholder {
        /// The variable.
        name: String,
    },
    /// Allow a protected path.
    AllowProtected,
    /// Edit the files of a target on the host, and trust it again.
    TrustAgain,
    /// Run with the directory of the other file system.
    OtherFileSystem,
    /// List the runs with held changes.
    ListHeld,
    /// Discard the held changes of a run.
    DiscardHeld,
    /// Build an image of Toolpost.
    BuildImage {
        /// The recipe.
        recipe: String,
    },
    /// Pull an image.
    PullImage {
        /// The image.
        image: String,
    },
    /// A fix that is the same for every front.
    Other {
        /// The fix.
        text: String,
    },
}

impl SandboxHint {
    pub(crate) fn other(text: impl Into<String>) -> Self {
        Self::Other { text: text.into() }
    }
}

impl fmt::Display for SandboxHint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::ChooseLevel => "use a level that this host supports, or allow a lower one",
            Self::CheckHost => "check the sandbox on this host",
            Self::ShowProgram => "use an absolute path, or show its directory to the sandbox",
            Self::ShowInterpreter => "show its interpreter and libraries to the sandbox",
            Self::WriteLive => {
                "let the program write to the directory itself, name a smaller one, or allow namespaces"
            }
            Self::OmitReview => "run without a review, or choose a smaller directory",
            Self::AllowPlaceholder { name } => {
                return write!(formatter, "allow a host for `{name}`, or grant the value itself");
            }
            Self::AllowProtected => "The operator can allow the path.",
            Self::TrustAgain => "Edit the files on the host; then trust the file of the target again.",
            Self::OtherFileSystem => "Run with the directory of that file system as the working directory.",
            Self::ListHeld => "list the runs with held changes",
            Self::DiscardHeld => "discard them",
            Self::BuildImage { recipe } => return write!(formatter, "build the image `{recipe}`"),
            Self::PullImage { image } => return write!(formatter, "pull the image `{image}`"),
            Self::Other { text } => text,
        })
    }
}
