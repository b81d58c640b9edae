//! The chain of descriptions that leads to a target.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::failure::Failure;

/// The maximum chain of descriptions.
const MAX_TRAIL: usize = 8;

/// The chain of descriptions that leads to a target, and the upstream whose target it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trail {
    descriptions: Vec<(PathBuf, String)>,
    upstream: Option<Upstream>,
}

/// The upstream of a gateway that a target belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Upstream {
    /// Its name, for messages.
    pub(crate) name: Arc<str>,
    /// The timeout of its start, without the installation of packages.
    pub(crate) start_timeout: Duration,
}

impl Trail {
    /// Whether no description leads to the target.
    pub(super) fn is_empty(&self) -> bool {
        self.descriptions.is_empty()
    }

    /// The upstream whose target this is.
    pub(super) fn upstream(&self) -> Option<&Upstream> {
        self.upstream.as_ref()
    }

    /// The trail to the target of an upstream.
    pub(crate) fn of_upstream(&self, upstream: Upstream) -> Self {
        Self { upstream: Some(upstream), ..self.clone() }
    }

    /// The directory of the last description.
    pub(super) fn directory(&self) -> Option<&Path> {
        self.descriptions.last()?.0.parent()
    }

    /// Appends a description, whose targets are its own.
    ///
    /// # Errors
    /// The chain has it already, or is too long.
    pub(crate) fn and(&self, path: &Path) -> Result<Self, Failure> {
        let absolute = path.canonicalize().map_err(|error| Failure::file("the description", path, &error))?;
        let shown = path.display().to_string();
        let first = self.descriptions.iter().position(|(known, _)| *known == absolute);
        let way = self.descriptions.iter().skip(first.unwrap_or_default()).map(|(_, shown)| shown.as_str());
        let way = way.chain([shown.as_str()]).collect::<Vec<_>>().join(" → ");
        if first.is_some() {
            return Err(Failure::usage(format!("the description `{shown}` is part of a cycle: {way}"))
                .hint("Remove one of them from the tools of another."));
        }
        if self.descriptions.len() >= MAX_TRAIL {
            return Err(Failure::usage(format!(
                "more than {MAX_TRAIL} descriptions in a chain, at `{shown}`: {way}"
            )));
        }
        let descriptions = self.descriptions.iter().cloned().chain([(absolute, shown)]).collect();
        Ok(Self { descriptions, upstream: None })
    }
}
