//! Renaming of tools.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toolpost_core::{Call, ToolError, ToolSource, check_tool_name};

use crate::definition::Kind;
use crate::layer::{Layered, Origin, SourceLayer};
use crate::listing::retain_aliases;
use crate::{SourceManifest, shown};

/// The new name, title or description of one tool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Rename {
    /// The name in the source.
    pub tool: String,
    /// The new name. The original name is then unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The new title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The new description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

impl Rename {
    /// A rename of this tool, without changes so far.
    pub fn new(tool: impl Into<String>) -> Self {
        Self { tool: tool.into(), ..Self::default() }
    }

    /// Sets the new name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the new title.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Sets the new description.
    #[must_use]
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
        self
    }
}

/// A source with renamed tools. Prompts and resources stay unchanged.
pub type Renamed = Layered<Renames>;

/// Checked renames of the tools of a source.
#[derive(Debug, Default)]
pub struct Renames {
    by_inner: HashMap<String, Rename>,
    /// From the new name to the name in the source.
    by_outer: HashMap<String, String>,
}

impl Renames {
    /// Checks renames.
    ///
    /// # Errors
    /// `INVALID_INPUT` if a new name is invalid, a description is empty, or a tool or name occurs twice.
    pub fn new(renames: impl IntoIterator<Item = Rename>) -> Result<Self, ToolError> {
        let mut all = Self::default();
        for rename in renames {
            let wrong =
                |why: String| Err(ToolError::invalid_input(format!("`{}`: {why}", shown(&rename.tool))));
            if let Some(name) = &rename.name {
                if let Err(message) = check_tool_name(name) {
                    return wrong(message);
                }
                if let Some(other) = all.by_outer.insert(name.clone(), rename.tool.clone()) {
                    return wrong(format!(
                        "`{other}` has the new name `{name}` as well; choose another name"
                    ));
                }
            }
            if rename.description.as_ref().is_some_and(|text| text.trim().is_empty()) {
                return wrong("the new description is empty; write one, or omit it".into());
            }
            if let Some(twice) = all.by_inner.insert(rename.tool.clone(), rename) {
                return Err(ToolError::invalid_input(format!("`{}` is renamed twice", shown(&twice.tool))));
            }
        }
        Ok(all)
    }

    /// Whether a name is a new name, or the original name of a renamed tool.
    fn is_taken(&self, name: &str) -> bool {
        self.by_outer.contains_key(name)
            || self.by_inner.get(name).is_some_and(|rename| rename.name.is_some())
    }
}

impl Layered<Renames> {
    /// Renames tools of a source.
    ///
    /// # Errors
    /// Errors of [`Renames::new`].
    pub fn new(
        source: Arc<dyn ToolSource>,
        renames: impl IntoIterator<Item = Rename>,
    ) -> Result<Self, ToolError> {
        Ok(Self::over(source, Renames::new(renames)?))
    }
}

impl SourceLayer for Renames {
    fn map(&self, origin: &Origin<'_>, mut manifest: SourceManifest) -> Result<SourceManifest, ToolError> {
        let mut names = HashMap::with_capacity(manifest.tools.len());
        for spec in &mut manifest.tools {
            let inner = spec.name.clone();
            if let Some(rename) = self.by_inner.get(&inner) {
                let outer = Arc::make_mut(spec);
                if let Some(name) = &rename.name {
                    outer.name.clone_from(name);
                    outer.meta.entry("original_name").or_insert_with(|| inner.as_str().into());
                }
                if rename.title.is_some() {
                    outer.title.clone_from(&rename.title);
                }
                if let Some(description) = &rename.description {
                    outer.description.clone_from(description);
                }
            }
            // A new name hides the same alias of another tool.
            retain_aliases(spec, |alias| !self.is_taken(alias));
            if let Some(other) = names.insert(spec.name.clone(), inner.clone()) {
                return Err(ToolError::conflict(format!(
                    "`{other}` and `{inner}` of `{}` are both called `{}`",
                    origin.source, spec.name
                ))
                .suggest("Give one of them another name."));
            }
        }
        Ok(manifest)
    }

    async fn resolve(layered: &Layered<Self>, kind: Kind, call: &Call) -> Result<Option<String>, ToolError> {
        let (renames, outer) = (&layered.layer, call.tool.as_str());
        if kind != Kind::Tool || !renames.is_taken(outer) {
            return Ok(None);
        }
        if let Some(inner) = renames.by_outer.get(outer) {
            return Ok(Some(inner.clone()));
        }
        let new = renames.by_inner.get(outer).and_then(|rename| rename.name.as_deref());
        let hint = new.map(|name| format!("Its name is `{name}`."));
        Err(ToolError::not_found(format!("unknown tool `{}`", shown(outer))).suggest_maybe(hint))
    }
}
