//! The rules of the tree, as a check that reads the checkout and complains.

mod claims;
mod facade;
mod fronts;
mod language;
mod layers;
mod layout;
mod messages;
mod packages;
mod pages;
mod sources;
pub mod tables;

use std::fmt;

use crate::Result;
use crate::workspace::Workspace;

/// Something that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Complaint {
    /// The file, below the root.
    pub file: String,
    /// The line, counted from 1; nothing where the whole file is meant.
    pub line: Option<usize>,
    /// The rule's name.
    pub rule: &'static str,
    /// The found and the expected value.
    pub found: String,
    /// The fix.
    pub action: String,
}

impl Complaint {
    fn new(rule: &'static str, file: &str, found: impl Into<String>, action: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line: None, rule, found: found.into(), action: action.into() }
    }

    /// At the line with this index.
    fn at(mut self, index: usize) -> Self {
        self.line = Some(index + 1);
        self
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: ", self.file)?,
            None => write!(f, "{}: ", self.file)?,
        }
        write!(f, "[{}] {}; {}", self.rule, self.found, self.action)
    }
}

/// Holds the rule of pages: links, anchors, and the table of contents.
pub fn check_pages(workspace: &Workspace) -> Vec<Complaint> {
    pages::check(workspace)
}

/// Holds every rule against the workspace. The complaints are sorted by file and line; none means that it is tidy.
///
/// Fails only where the workspace cannot be read.
pub fn check(workspace: &Workspace) -> Result<Vec<Complaint>> {
    let sources = workspace.sources();
    let mut complaints = Vec::new();
    complaints.extend(claims::check(workspace, &sources));
    complaints.extend(facade::check(&sources));
    complaints.extend(fronts::check(workspace, &sources));
    complaints.extend(layers::check(workspace));
    complaints.extend(language::check(workspace, &sources));
    complaints.extend(sources::check(workspace, &sources));
    complaints.extend(messages::check(workspace, &sources));
    complaints.extend(layout::check(workspace, &sources)?);
    complaints.extend(packages::check(workspace, &sources));
    complaints.extend(pages::check(workspace));
    complaints.sort();
    complaints.dedup();
    Ok(complaints)
}
