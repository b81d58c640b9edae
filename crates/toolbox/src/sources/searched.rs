//! Many tools behind three, for clients that cannot search.

mod tools;

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};
use toolpost_core::{
    BoxFuture, Call, Caller, Output, PromptSpec, Reply, ResourceSpec, SourceStatus, ToolError, ToolSource,
    ToolSpec, check_tool_name,
};

use self::tools::{CALL, Lookup};
use super::listing::{LIST_TIMEOUT, tools_of};
use super::{Glob, refused, shown};
use crate::{Catalog, Toolbox};

/// A source of which callers see three tools: `search_tools` finds tools by words, `describe_tools` says how they are
/// called, and `call_tool` calls one. So a list of hundreds costs the model of a client no more than these three.
///
/// Some tools can be shown besides, and some programs can be shown the whole list as it is: those that search by
/// themselves. A call through `call_tool` is the call of the tool itself, with its record, its permission and its
/// questions; a tool that the caller knows by name can be called without it. A tool that has one of the three names is
/// reached through `call_tool` alone.
pub struct Searched(Arc<Shared>);

struct Shared {
    source: Arc<dyn ToolSource>,
    catalog: Catalog,
    /// Holds the three tools, so that their calls take the one path and leave records as all others do.
    tools: Toolbox,
    always: Vec<Glob>,
    finders: Vec<Glob>,
}

impl Searched {
    /// Puts the tools of a source behind three. The catalog is of the toolbox that the source is, or that it filters:
    /// what is found in it and not listed by the source is not told of.
    pub fn new(source: Arc<dyn ToolSource>, catalog: Catalog) -> Self {
        let tools = tools::toolbox();
        Self(Arc::new(Shared { source, catalog, tools, always: Vec::new(), finders: Vec::new() }))
    }

    fn change(self, change: impl FnOnce(&mut Shared)) -> Self {
        let old = &self.0;
        let mut shared = Shared {
            source: Arc::clone(&old.source),
            catalog: old.catalog.clone(),
            tools: old.tools.clone(),
            always: old.always.clone(),
            finders: old.finders.clone(),
        };
        change(&mut shared);
        Self(Arc::new(shared))
    }

    /// Shows these tools besides. Default: none.
    #[must_use]
    pub fn always(self, patterns: impl IntoIterator<Item = Glob>) -> Self {
        self.change(|shared| shared.always.extend(patterns))
    }

    /// Shows the whole list to these programs, by [`Caller::program`], and not the three tools. Default: none.
    #[must_use]
    pub fn whole_for(self, programs: impl IntoIterator<Item = Glob>) -> Self {
        self.change(|shared| shared.finders.extend(programs))
    }
}

impl Shared {
    fn own(&self, name: &str) -> bool {
        self.tools.spec(name).is_some()
    }

    fn for_caller(&self, caller: &Caller) -> Arc<dyn ToolSource> {
        self.source.seen_by(caller).unwrap_or_else(|| Arc::clone(&self.source))
    }

    /// The tool that a call of `call_tool` names, and its arguments.
    fn unwrapped(call: &Call) -> Result<(String, Value), ToolError> {
        let Some(name) = call.arguments.get("name").and_then(Value::as_str) else {
            return Err(ToolError::invalid_input("`name`: expected the name of a tool, found none")
                .suggest("`search_tools` finds names."));
        };
        // Nothing but a tool is reached by a name.
        if check_tool_name(name).is_err() {
            return Err(ToolError::not_found(format!("there is no tool `{}`", shown(name))));
        }
        let arguments = match call.arguments.get("arguments") {
            None | Some(Value::Null) => Some(Map::new()),
            Some(Value::Object(arguments)) => Some(arguments.clone()),
            // Some models write the object as a text.
            Some(Value::String(text)) => serde_json::from_str(text).ok(),
            Some(_) => None,
        };
        let arguments = arguments.ok_or_else(|| {
            ToolError::invalid_input("`arguments`: expected an object with the arguments of the tool")
                .suggest("`describe_tools` says which they are.")
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

impl fmt::Debug for Searched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Searched")
            .field("source", &self.0.source.name())
            .field("always", &self.0.always)
            .field("finders", &self.0.finders)
            .finish_non_exhaustive()
    }
}

impl ToolSource for Searched {
    fn name(&self) -> &str {
        self.0.source.name()
    }

    /// The three tools and all others: what anybody may see, or call by name.
    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(async {
            let mut specs = self.0.tools.specs();
            let others = tools_of(&*self.0.source, LIST_TIMEOUT).await?;
            specs.extend(others.into_iter().filter(|spec| !self.0.own(&spec.name)));
            Ok(specs)
        })
    }

    fn generation(&self) -> u64 {
        self.0.source.generation()
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        self.0.call(call)
    }

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        self.0.source.resources()
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        self.0.source.prompts()
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        self.0.source.read(call)
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        self.0.source.render(call)
    }

    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        let view = self.0.for_caller(caller);
        let program = caller.program.as_deref();
        if program.is_some_and(|program| self.0.finders.iter().any(|glob| glob.matches(program))) {
            return Some(view);
        }
        Some(Arc::new(Short { shared: Arc::clone(&self.0), view }))
    }

    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        self.0.source.health()
    }

    fn status(&self) -> Vec<SourceStatus> {
        self.0.source.status()
    }
}

/// The three tools, and those that are always shown, for one caller.
struct Short {
    shared: Arc<Shared>,
    view: Arc<dyn ToolSource>,
}

impl ToolSource for Short {
    fn name(&self) -> &str {
        self.shared.source.name()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
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

    fn generation(&self) -> u64 {
        self.view.generation()
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Reply> {
        self.shared.call(call)
    }

    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        self.view.resources()
    }

    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        self.view.prompts()
    }

    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        self.view.read(call)
    }

    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        self.view.render(call)
    }

    fn viewer(&self) -> Option<&Caller> {
        self.view.viewer()
    }

    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        self.view.health()
    }

    fn status(&self) -> Vec<SourceStatus> {
        self.view.status()
    }
}
