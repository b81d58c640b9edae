//! Renaming of tools.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toolpost_core::{
    BoxFuture, Call, Caller, Reply, ToolError, ToolSource, ToolSpec, check_tool_name, did_you_mean,
};

use super::listing::{Index, Listing};
use super::{Specs, refused, shown};

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
    pub fn of(tool: impl Into<String>) -> Self {
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
pub struct Renamed {
    source: Arc<dyn ToolSource>,
    listing: Listing,
    renames: Arc<Renames>,
}

#[derive(Debug, Default)]
struct Renames {
    by_inner: HashMap<String, Rename>,
    /// From the new name to the name in the source.
    by_outer: HashMap<String, String>,
}

impl Renamed {
    /// Renames tools of a source.
    ///
    /// # Errors
    /// `INVALID_INPUT` if a new name is invalid, a description is empty, or a tool or name occurs twice.
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
        Ok(Self::of(source, Arc::new(all)))
    }

    fn of(source: Arc<dyn ToolSource>, renames: Arc<Renames>) -> Self {
        Self { listing: Listing::new(Arc::clone(&source)), source, renames }
    }

    /// The renamed tools that are missing in the list that was read last.
    pub fn unused(&self) -> Vec<String> {
        let Some(index) = self.listing.last() else { return Vec::new() };
        let mut unused: Vec<String> =
            self.renames.by_inner.keys().filter(|name| index.get(name).is_none()).cloned().collect();
        unused.sort();
        unused
    }

    fn outer(&self, index: &Index) -> Specs<ToolSpec> {
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
            // A new name hides the same alias of another tool.
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

    /// Whether a name is a new name, or the original name of a renamed tool.
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
        Err(ToolError::not_found(format!("unknown tool `{}`", shown(outer))).suggest_maybe(
            new.map(|name| format!("Its name is `{name}`."))
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
    forward!(self => self.source; name, generation, resources, prompts, read, render, viewer, health, status);

    fn list(&self) -> BoxFuture<'_, Specs<ToolSpec>> {
        Box::pin(async { self.outer(&*self.listing.read().await?) })
    }

    fn call(&self, mut call: Call) -> BoxFuture<'_, Reply> {
        match self.inner_name(&call.tool) {
            Ok(inner) => call.tool = inner,
            Err(error) => return Box::pin(async move { refused(&call, self.name(), error) }),
        }
        self.source.call(call)
    }

    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        let seen = self.source.seen_by(caller)?;
        Some(Arc::new(Self::of(seen, Arc::clone(&self.renames))))
    }
}
