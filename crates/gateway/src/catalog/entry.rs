//! One tool of a catalog.

use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use toolpost_core::{Tool, ToolError, ToolSpec};

use super::definition::definition_tokens;

/// What is known of a tool that is not there yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ToolSummary {
    /// The name that it will have.
    pub name: String,
    /// What it does and when to use it.
    pub description: String,
    /// Such as `file_system`.
    pub category: Option<String>,
    /// Dotted, such as `crm.contacts`.
    pub group: Option<String>,
    /// Words to find it by.
    pub tags: Vec<String>,
    /// About how many tokens its definition has, where that is known.
    pub estimated_tokens: Option<u64>,
}

impl ToolSummary {
    /// A summary without category, group and tags.
    pub fn new(name: impl Into<String>, description: impl Into<String>) -> Self {
        Self { name: name.into(), description: description.into(), ..Self::default() }
    }
}

/// Makes a tool when it is first needed.
pub(super) type Make = Arc<dyn Fn() -> Result<Arc<dyn Tool>, ToolError> + Send + Sync>;

/// A tool that is made when it is first needed.
#[derive(Clone)]
pub(super) struct Lazy {
    pub(super) summary: Arc<ToolSummary>,
    pub(super) make: Make,
}

enum Kind {
    Ready(Arc<ToolSpec>),
    Lazy(Lazy),
}

/// One tool of a catalog.
pub struct CatalogEntry {
    kind: Kind,
    tokens: OnceLock<u64>,
}

impl CatalogEntry {
    pub(super) fn ready(spec: Arc<ToolSpec>) -> Self {
        Self { kind: Kind::Ready(spec), tokens: OnceLock::new() }
    }

    pub(super) fn lazy(lazy: Lazy) -> Self {
        Self { kind: Kind::Lazy(lazy), tokens: OnceLock::new() }
    }

    pub(super) fn make(&self) -> Option<Make> {
        match &self.kind {
            Kind::Ready(_) => None,
            Kind::Lazy(lazy) => Some(Arc::clone(&lazy.make)),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match &self.kind {
            Kind::Ready(spec) => &spec.name,
            Kind::Lazy(lazy) => &lazy.summary.name,
        }
    }

    /// What it does and when to use it.
    pub fn description(&self) -> &str {
        match &self.kind {
            Kind::Ready(spec) => &spec.description,
            Kind::Lazy(lazy) => &lazy.summary.description,
        }
    }

    /// Such as `file_system`.
    pub fn category(&self) -> Option<&str> {
        match &self.kind {
            Kind::Ready(spec) => spec.category.as_deref(),
            Kind::Lazy(lazy) => lazy.summary.category.as_deref(),
        }
    }

    /// Dotted, such as `crm.contacts`.
    pub fn group(&self) -> Option<&str> {
        match &self.kind {
            Kind::Ready(spec) => spec.group.as_deref(),
            Kind::Lazy(lazy) => lazy.summary.group.as_deref(),
        }
    }

    /// Words to find it by.
    pub fn tags(&self) -> &[String] {
        match &self.kind {
            Kind::Ready(spec) => &spec.tags,
            Kind::Lazy(lazy) => &lazy.summary.tags,
        }
    }

    /// All that is known of it; nothing if it was not made yet.
    pub fn spec(&self) -> Option<&Arc<ToolSpec>> {
        match &self.kind {
            Kind::Ready(spec) => Some(spec),
            Kind::Lazy(_) => None,
        }
    }

    /// About how many tokens its definition has; 0 where nobody knows because it was not made yet. Counted on first use.
    pub fn estimated_tokens(&self) -> u64 {
        match &self.kind {
            Kind::Ready(spec) => *self.tokens.get_or_init(|| definition_tokens(spec, false)),
            Kind::Lazy(lazy) => lazy.summary.estimated_tokens.unwrap_or_default(),
        }
    }
}

impl fmt::Debug for CatalogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CatalogEntry")
            .field("name", &self.name())
            .field("category", &self.category())
            .field("group", &self.group())
            .field("ready", &self.spec().is_some())
            .finish_non_exhaustive()
    }
}
