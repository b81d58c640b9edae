//! Many tools behind three, for clients without tool search.

mod tools;

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};
use toolpost_core::{BoxFuture, Call, Caller, Reply, ToolError, ToolSource, ToolSpec, check_tool_name};

use self::tools::{CALL, Lookup};
use super::listing::{LIST_TIMEOUT, tools_of};
use super::{Glob, Specs, refused, shown};
use toolpost_toolbox::Toolbox;

use crate::catalog::Catalog;

/// A source that shows three tools: `search_tools` finds tools by words, `describe_tools` returns their
/// schemas, and `call_tool` calls one. So a list of hundreds costs a model no more context than these three.
///
/// Selected tools can be listed too, and selected programs can get the whole list. A call through `call_tool`
/// is the call of the tool itself, with its record, permission and questions. A caller may also call a tool
/// directly by name. A tool with one of the three names is reached only through `call_tool`.
pub struct Searchable(Arc<Shared>);

struct Shared {
    source: Arc<dyn ToolSource>,
    catalog: Catalog,
    /// The toolbox of the three tools, so that their calls take the call path.
    tools: Toolbox,
    always: Vec<Glob>,
    unfiltered_programs: Vec<Glob>,
}

impl Searchable {
    /// Puts the tools of a source behind three. The catalog is that of the toolbox behind the source. Tools
    /// that the source does not list are never found.
    pub fn new(source: Arc<dyn ToolSource>, catalog: Catalog) -> Self {
        let tools = tools::toolbox(catalog.toolbox());
        Self(Arc::new(Shared { source, catalog, tools, always: Vec::new(), unfiltered_programs: Vec::new() }))
    }

    fn change(self, change: impl FnOnce(&mut Shared)) -> Self {
        let old = &self.0;
        let mut shared = Shared {
            source: Arc::clone(&old.source),
            catalog: old.catalog.clone(),
            tools: old.tools.clone(),
            always: old.always.clone(),
            unfiltered_programs: old.unfiltered_programs.clone(),
        };
        change(&mut shared);
        Self(Arc::new(shared))
    }

    /// Also lists these tools. Default: none.
    #[must_use]
    pub fn always(self, patterns: impl IntoIterator<Item = Glob>) -> Self {
        self.change(|shared| shared.always.extend(patterns))
    }

    /// Shows the whole list to these programs, by [`Caller::program`]. Default: none.
    #[must_use]
    pub fn whole_for(self, programs: impl IntoIterator<Item = Glob>) -> Self {
        self.change(|shared| shared.unfiltered_programs.extend(programs))
    }
}

impl Shared {
    fn own(&self, name: &str) -> bool {
        self.tools.spec(name).is_some()
    }

    fn for_caller(&self, caller: &Caller) -> Arc<dyn ToolSource> {
        self.source.seen_by(caller).unwrap_or_else(|| Arc::clone(&self.source))
    }

    /// The tool and the arguments in a call of `call_tool`.
    fn unwrapped(call: &Call) -> Result<(String, Value), ToolError> {
        let Some(name) = call.arguments.get("name").and_then(Value::as_str) else {
            return Err(ToolError::invalid_input("`name`: expected the name of a tool")
                .suggest("`search_tools` finds names."));
        };
        // Only names of tools are valid, not keys of prompts or resources.
        if check_tool_name(name).is_err() {
            return Err(ToolError::not_found(format!("unknown tool `{}`", shown(name))));
        }
        let arguments = match call.arguments.get("arguments") {
            None | Some(Value::Null) => Some(Map::new()),
            Some(Value::Object(arguments)) => Some(arguments.clone()),
            // Some models send the object as a string.
            Some(Value::String(text)) => serde_json::from_str(text).ok(),
            Some(_) => None,
        };
        let arguments = arguments.ok_or_else(|| {
            ToolError::invalid_input("`arguments`: expected an object with the arguments of the tool")
                .suggest("`describe_tools` returns their schema.")
        })?;
        Ok((name.to_owned(), Value::Object(arguments)))
    }

    fn call(self: &Arc<Self>, mut call: Call) -> BoxFuture<'static, Reply> {
        let shared = Arc::clone(self);
        Box::pin(async move {
            if !shared.own(&call.tool) {
                return shared.source.call(call).await;
            }
            if call.tool == CALL {
                return match Self::unwrapped(&call) {
                    Ok((tool, arguments)) => {
                        call.tool = tool;
                        call.arguments = Arc::new(arguments);
                        shared.source.call(call).await
                    }
                    Err(error) => refused(&call, shared.source.name(), error),
                };
            }
            let view = shared.for_caller(&call.caller);
            call.values.provide(Lookup { view, catalog: shared.catalog.clone() });
            shared.tools.call(call).await
        })
    }
}

impl fmt::Debug for Searchable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Searchable")
            .field("source", &self.0.source.name())
            .field("always", &self.0.always)
            .field("unfiltered_programs", &self.0.unfiltered_programs)
            .finish_non_exhaustive()
    }
}

impl ToolSource for Searchable {
    forward!(self => self.0.source; name, generation, resources, prompts, read, render, health, status);

    /// The three tools and all others.
    fn list(&self) -> BoxFuture<'_, Specs<ToolSpec>> {
        Box::pin(async {
            let mut specs = self.0.tools.specs();
            let others = tools_of(&*self.0.source, LIST_TIMEOUT).await?;
            specs.extend(others.into_iter().filter(|spec| !self.0.own(&spec.name)));
            Ok(specs)
        })
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        self.0.call(call)
    }

    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        let view = self.0.for_caller(caller);
        let program = caller.program.as_deref();
        if program.is_some_and(|program| self.0.unfiltered_programs.iter().any(|glob| glob.matches(program)))
        {
            return Some(view);
        }
        Some(Arc::new(ShortView { shared: Arc::clone(&self.0), view }))
    }
}

/// The three tools and the always listed ones, for one caller.
struct ShortView {
    shared: Arc<Shared>,
    view: Arc<dyn ToolSource>,
}

impl ToolSource for ShortView {
    forward!(self => self.view; generation, resources, prompts, read, render, viewer, health, status);

    fn name(&self) -> &str {
        self.shared.source.name()
    }

    fn list(&self) -> BoxFuture<'_, Specs<ToolSpec>> {
        Box::pin(async {
            let mut specs = self.shared.tools.specs();
            if !self.shared.always.is_empty() {
                let all = tools_of(&*self.view, LIST_TIMEOUT).await?;
                let is_shown = |spec: &Arc<ToolSpec>| {
                    !self.shared.own(&spec.name)
                        && self.shared.always.iter().any(|glob| glob.matches(&spec.name))
                };
                specs.extend(all.into_iter().filter(is_shown));
            }
            Ok(specs)
        })
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        self.shared.call(call)
    }
}
