//! The chain of descriptions that leads to a target.

use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The maximum chain of descriptions.
const MAX_TRAIL: usize = 8;

/// The chain of descriptions that leads to a target.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trail(Vec<(PathBuf, String)>);

impl Trail {
    /// Whether no description leads to the target.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The directory of the last description.
    pub(super) fn directory(&self) -> Option<&Path> {
        self.0.last()?.0.parent()
    }

    /// Appends a description.
    ///
    /// # Errors
    /// The chain has it already, or is too long.
    pub(crate) fn and(&self, path: &Path) -> Result<Self, Failure> {
        let absolute = path.canonicalize().map_err(|error| Failure::file("the description", path, &error))?;
        let shown = path.display().to_string();
        let first = self.0.iter().position(|(known, _)| *known == absolute);
        let way = self.0.iter().skip(first.unwrap_or_default()).map(|(_, shown)| shown.as_str());
        let way = way.chain([shown.as_str()]).collect::<Vec<_>>().join(" → ");
        if first.is_some() {
            return Err(Failure::usage(format!("the description `{shown}` is part of a cycle: {way}"))
                .hint("Remove one of them from the tools of another."));
        }
        if self.0.len() >= MAX_TRAIL {
            return Err(Failure::usage(format!(
                "more than {MAX_TRAIL} descriptions in a chain, at `{shown}`: {way}"
            )));
        }
        Ok(Self(self.0.iter().cloned().chain([(absolute, shown)]).collect()))
    }
}
