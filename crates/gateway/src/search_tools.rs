//! Many tools behind three, for clients without tool search.

mod tools;

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};
use toolpost_core::{Call, Caller, Reply, ToolError, ToolSource, ToolSpec, check_tool_name};
use toolpost_toolbox::Toolbox;

use self::tools::{CALL, Lookup};
use crate::catalog::Catalog;
use crate::definition::Kind;
use crate::layer::{Layered, Origin, SourceLayer};
use crate::{Glob, SourceManifest, refused, shown};

/// A source that shows three tools: `search_tools` finds tools by words, `describe_tools` returns their
/// schemas, and `call_tool` calls one. So a list of hundreds costs a model no more context than these three.
///
/// A call through `call_tool` is the call of the tool itself, with its record, permission and questions. A
/// caller may also call a tool directly by name. A tool with one of the three names is reached only through
/// `call_tool`.
pub type Searchable = Layered<SearchTools>;

/// The three tools, and which callers see more than them.
pub struct SearchTools {
    catalog: Catalog,
    /// The toolbox of the three tools, so that their calls take the call path.
    tools: Toolbox,
    always: Vec<Glob>,
    unfiltered_programs: Vec<Glob>,
}

impl SearchTools {
    /// Searches the catalog of the toolbox behind the source. Tools that the source does not list are never
    /// found.
    pub fn new(catalog: Catalog) -> Self {
        let tools = tools::toolbox(catalog.toolbox());
        Self { catalog, tools, always: Vec::new(), unfiltered_programs: Vec::new() }
    }

    /// Also lists these tools. Default: none.
    #[must_use]
    pub fn always(mut self, patterns: impl IntoIterator<Item = Glob>) -> Self {
        self.always.extend(patterns);
        self
    }

    /// Shows the whole list to these programs, by [`Caller::program`]. Default: none.
    #[must_use]
    pub fn whole_for(mut self, programs: impl IntoIterator<Item = Glob>) -> Self {
        self.unfiltered_programs.extend(programs);
        self
    }

    fn has(&self, name: &str) -> bool {
        self.tools.spec(name).is_some()
    }

    fn sees_all(&self, caller: &Caller) -> bool {
        let program = caller.program.as_deref();
        program.is_some_and(|program| self.unfiltered_programs.iter().any(|glob| glob.matches(program)))
    }
}

impl Layered<SearchTools> {
    /// Puts the tools of a source behind three.
    pub fn new(source: Arc<dyn ToolSource>, tools: SearchTools) -> Self {
        Self::over(source, tools)
    }
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

impl SourceLayer for SearchTools {
    fn has_views(&self) -> bool {
        true
    }

    /// All callers together see the three tools and all others.
    fn map(&self, origin: &Origin<'_>, mut manifest: SourceManifest) -> Result<SourceManifest, ToolError> {
        if origin.kind != Kind::Tool || origin.viewer.is_some_and(|caller| self.sees_all(caller)) {
            return Ok(manifest);
        }
        let is_listed = |spec: &Arc<ToolSpec>| {
            let is_open = origin.viewer.is_none() || self.always.iter().any(|glob| glob.matches(&spec.name));
            is_open && !self.has(&spec.name)
        };
        manifest.tools.retain(is_listed);
        manifest.tools.splice(..0, self.tools.specs());
        Ok(manifest)
    }

    async fn resolve(_: &Layered<Self>, _: Kind, _: &Call) -> Result<Option<String>, ToolError> {
        Ok(None)
    }

    async fn call(layered: &Layered<Self>, mut call: Call) -> Reply {
        let (search, source) = (&layered.layer, &layered.whole);
        if call.tool == CALL {
            match unwrapped(&call) {
                Ok((tool, arguments)) => {
                    call.tool = tool;
                    call.arguments = Arc::new(arguments);
                }
                Err(error) => return refused(&call, source.name(), error),
            }
        } else if search.has(&call.tool) {
            let view = source.seen_by(&call.caller).unwrap_or_else(|| Arc::clone(source));
            call.values.provide(Lookup { view, catalog: search.catalog.clone() });
            return search.tools.call(call).await;
        }
        source.call(call).await
    }
}

impl fmt::Debug for SearchTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SearchTools")
            .field("always", &self.always)
            .field("unfiltered_programs", &self.unfiltered_programs)
            .finish_non_exhaustive()
    }
}
