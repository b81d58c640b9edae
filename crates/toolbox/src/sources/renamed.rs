//! Other names and descriptions for tools.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toolpost_core::{
    BoxFuture, Call, Caller, Output, PromptSpec, Reply, ResourceSpec, SourceStatus, ToolError, ToolSource,
    ToolSpec, check_tool_name, did_you_mean,
};

use super::listing::{Index, Listing};
use super::{refused, shown};

/// How one tool is shown instead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Rename {
    /// What the source calls it.
    pub tool: String,
    /// What it is called instead; its own name leads nowhere then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its title for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What it does, in the operator's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

impl Rename {
    /// Begins to say how a tool is shown.
    pub fn of(tool: impl Into<String>) -> Self {
        Self { tool: tool.into(), ..Self::default() }
    }

    /// Gives it another name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Gives it a title.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Gives it another description.
    #[must_use]
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
        self
    }
}

/// A source of which some tools have other names and descriptions. Prompts and resources stay as they are.
pub struct Renamed {
    source: Arc<dyn ToolSource>,
    listing: Listing,
    renames: Arc<Renames>,
}

#[derive(Debug, Default)]
struct Renames {
    by_inner: HashMap<String, Rename>,
    /// From the new name to the source's.
    by_outer: HashMap<String, String>,
}

impl Renamed {
    /// Shows some tools of a source under other names.
    ///
    /// # Errors
    /// `INVALID_INPUT` if a new name is none, if a description is empty, or if one tool or name stands there twice.
    pub fn new(
        source: Arc<dyn ToolSource>,
        renames: impl IntoIterator<Item = Rename>,
    ) -> Result<Self, ToolError> {
        let mut all = Renames::default();
        for rename in renames {
            let wrong =
                |why: String| Err(ToolError::invalid_input(format!("`{}`: {why}", shown(&rename.tool))));
            if let Some(name) = &rename.name {
                if let Err(message) = check_tool_name(name) {
                    return wrong(message);
                }
                if let Some(other) = all.by_outer.insert(name.clone(), rename.tool.clone()) {
                    return wrong(format!("`{other}` is called `{name}` already; choose another name"));
                }
            }
            if rename.description.as_ref().is_some_and(|text| text.trim().is_empty()) {
                return wrong("its new description is empty: say what it does, or leave it out".into());
            }
            if let Some(twice) = all.by_inner.insert(rename.tool.clone(), rename) {
                return Err(ToolError::invalid_input(format!("`{}` is renamed twice", shown(&twice.tool))));
            }
        }
        Ok(Self::of(source, Arc::new(all)))
    }

    fn of(source: Arc<dyn ToolSource>, renames: Arc<Renames>) -> Self {
        Self { listing: Listing::new(Arc::clone(&source)), source, renames }
    }

    /// The tools that shall be shown otherwise and are not there, as far as the list was read: a renamed tool that is
    /// gone, or a slip of the pen.
    pub fn unused(&self) -> Vec<String> {
        let Some(index) = self.listing.last() else { return Vec::new() };
        let mut unused: Vec<String> =
            self.renames.by_inner.keys().filter(|name| index.get(name).is_none()).cloned().collect();
        unused.sort();
        unused
    }

    fn outer(&self, index: &Index) -> Result<Vec<Arc<ToolSpec>>, ToolError> {
        let mut names = HashMap::with_capacity(index.specs.len());
        let mut specs = Vec::with_capacity(index.specs.len());
        for spec in &index.specs {
            let outer = match self.renames.by_inner.get(&spec.name) {
                None => Arc::clone(spec),
                Some(rename) => {
                    let mut outer = ToolSpec::clone(spec);
                    if let Some(name) = &rename.name {
                        outer.name.clone_from(name);
                        outer.meta.entry("original_name").or_insert_with(|| spec.name.as_str().into());
                    }
                    outer.title = rename.title.clone().or(outer.title);
                    if let Some(description) = &rename.description {
                        outer.description.clone_from(description);
                    }
                    Arc::new(outer)
                }
            };
            // An alias that leads to a name that another tool now has would lead past it.
            let outer = if outer.aliases.iter().any(|alias| self.is_taken(&alias.name)) {
                let mut fewer = ToolSpec::clone(&outer);
                fewer.aliases.retain(|alias| !self.is_taken(&alias.name));
                Arc::new(fewer)
            } else {
                outer
            };
            if let Some(other) = names.insert(outer.name.clone(), Arc::clone(spec)) {
                return Err(ToolError::conflict(format!(
                    "`{}` and `{}` of `{}` are both called `{}`",
                    other.name,
                    spec.name,
                    self.source.name(),
                    outer.name
                ))
                .suggest("Give one of them another name."));
            }
            specs.push(outer);
        }
        Ok(specs)
    }

    /// Whether a name is a new one, or was given up for one.
    fn is_taken(&self, name: &str) -> bool {
        self.renames.by_outer.contains_key(name)
            || self.renames.by_inner.get(name).is_some_and(|rename| rename.name.is_some())
    }

    fn inner_name(&self, outer: &str) -> Result<String, ToolError> {
        if let Some(inner) = self.renames.by_outer.get(outer) {
            return Ok(inner.clone());
        }
        if !self.is_taken(outer) {
            return Ok(outer.to_owned());
        }
        let new = self.renames.by_inner.get(outer).and_then(|rename| rename.name.as_deref());
        Err(ToolError::not_found(format!("there is no tool `{}`", shown(outer))).suggest_maybe(
            new.map(|name| format!("It is called `{name}` here."))
                .or_else(|| did_you_mean(outer, self.renames.by_outer.keys().map(String::as_str))),
        ))
    }
}

impl fmt::Debug for Renamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renamed")
            .field("source", &self.source.name())
            .field("renames", &self.renames)
            .finish_non_exhaustive()
    }
}

impl ToolSource for Renamed {
    fn name(&self) -> &str {
        self.source.name()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(async { self.outer(&*self.listing.read().await?) })
    }

    fn generation(&self) -> u64 {
        self.source.generation()
    }

    fn call(&self, mut call: Call) -> BoxFuture<'_, Reply> {
        match self.inner_name(&call.tool) {
            Ok(inner) => call.tool = inner,
            Err(error) => return Box::pin(async move { refused(&call, self.name(), error) }),
        }
        self.source.call(call)
    }

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        self.source.resources()
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        self.source.prompts()
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        self.source.read(call)
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        self.source.render(call)
    }

    fn viewer(&self) -> Option<&Caller> {
        self.source.viewer()
    }

    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        let seen = self.source.seen_by(caller)?;
        Some(Arc::new(Self::of(seen, Arc::clone(&self.renames))))
    }

    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        self.source.health()
    }

    fn status(&self) -> Vec<SourceStatus> {
        self.source.status()
    }
}
