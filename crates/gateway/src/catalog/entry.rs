//! One tool of a catalog.

use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use toolpost_core::{Tool, ToolError, ToolSpec};

use super::definition::definition_tokens;

/// The searchable facts of a lazy tool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ToolSummary {
    /// The name of the tool.
    pub name: String,
    /// The purpose, and when to use it.
    pub description: String,
    /// The category, such as `file_system`.
    pub category: Option<String>,
    /// The dotted group, such as `crm.contacts`.
    pub group: Option<String>,
    /// The tags.
    pub tags: Vec<String>,
    /// The estimated tokens of its definition, if known.
    pub estimated_tokens: Option<u64>,
}

impl ToolSummary {
    /// Creates a summary without category, group and tags.
    pub fn new(name: impl Into<String>, description: impl Into<String>) -> Self {
        Self { name: name.into(), description: description.into(), ..Self::default() }
    }
}

/// Creates a lazy tool.
pub(super) type Make = Arc<dyn Fn() -> Result<Arc<dyn Tool>, ToolError> + Send + Sync>;

/// One tool of a catalog.
#[derive(Clone)]
pub struct CatalogEntry {
    /// The spec; of a lazy tool only what its summary has.
    spec: Arc<ToolSpec>,
    /// Creates the tool if it is lazy and not created yet.
    make: Option<Make>,
    tokens: OnceLock<u64>,
}

impl CatalogEntry {
    pub(super) fn ready(spec: Arc<ToolSpec>) -> Self {
        Self { spec, make: None, tokens: OnceLock::new() }
    }

    pub(super) fn lazy(summary: ToolSummary, make: Make) -> Self {
        let mut spec = ToolSpec::new(summary.name, summary.description);
        (spec.category, spec.group, spec.tags) = (summary.category, summary.group, summary.tags);
        let tokens = OnceLock::from(summary.estimated_tokens.unwrap_or_default());
        Self { spec: Arc::new(spec), make: Some(make), tokens }
    }

    pub(super) fn make(&self) -> Option<&Make> {
        self.make.as_ref()
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// The purpose, and when to use it.
    pub fn description(&self) -> &str {
        &self.spec.description
    }

    /// The category, such as `file_system`.
    pub fn category(&self) -> Option<&str> {
        self.spec.category.as_deref()
    }

    /// The dotted group, such as `crm.contacts`.
    pub fn group(&self) -> Option<&str> {
        self.spec.group.as_deref()
    }

    /// The tags.
    pub fn tags(&self) -> &[String] {
        &self.spec.tags
    }

    /// The spec; `None` for a lazy tool that is not created yet.
    pub fn spec(&self) -> Option<&Arc<ToolSpec>> {
        self.make.is_none().then_some(&self.spec)
    }

    /// The estimated tokens of its definition; 0 if unknown. Counted on first use.
    pub fn estimated_tokens(&self) -> u64 {
        *self.tokens.get_or_init(|| definition_tokens(&self.spec, false))
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
