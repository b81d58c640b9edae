//! The tools `search_tools`, `describe_tools` and `call_tool`.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};
use toolpost_core::{
    Annotations, Args, Inject, Output, Tool, ToolError, ToolSource, ToolSpec, did_you_mean, tool_fn,
};

use crate::listing::{LIST_TIMEOUT, listed};
use crate::shown;
use toolpost_toolbox::Toolbox;

use crate::catalog::{Catalog, Matching, Search};

/// The name of the tool that calls another tool.
pub(super) const CALL: &str = "call_tool";
/// The maximum number of results of a search, and the default.
const MAX_FOUND: usize = 50;
const FOUND: usize = 8;
/// The maximum number of tools per description.
const MAX_DESCRIBED: usize = 10;
/// The maximum length of a result's summary, in characters.
const MAX_SUMMARY: usize = 160;
/// The maximum number of parameters in a result.
const MAX_PARAMETERS: usize = 12;

/// The tools that one caller may see, and the catalog.
pub(super) struct Lookup {
    pub(super) view: Arc<dyn ToolSource>,
    pub(super) catalog: Catalog,
}

impl Lookup {
    /// The tools that the caller may see now, by name.
    async fn open(&self) -> Result<HashMap<String, Arc<ToolSpec>>, ToolError> {
        let specs = listed::<ToolSpec>(&*self.view, LIST_TIMEOUT).await?;
        Ok(specs.into_iter().map(|spec| (spec.name.clone(), spec)).collect())
    }
}

/// The three tools.
pub(super) fn toolbox(behind: &Toolbox) -> Toolbox {
    let toolbox = behind.sibling("search");
    let add = |tool: Arc<dyn Tool>| {
        if let Err(error) = toolbox.add(tool) {
            tracing::error!("{error}");
        }
    };
    add(Arc::new(tool_fn(search_spec(), async |args, ctx| {
        let lookup: Inject<Lookup> = ctx.inject()?;
        search(&args, &lookup).await
    })));
    add(Arc::new(tool_fn(describe_spec(), async |args, ctx| {
        let lookup: Inject<Lookup> = ctx.inject()?;
        describe(&args, &lookup).await
    })));
    // Never runs: its call becomes the call of the tool that it names.
    add(Arc::new(tool_fn(call_spec(), async |_args, _ctx| {
        Err::<Output, _>(ToolError::internal("`call_tool` did not forward the call"))
    })));
    toolbox
}

fn reading(spec: ToolSpec) -> ToolSpec {
    spec.annotations(Annotations { read_only: true, idempotent: true, ..Annotations::default() })
}

fn search_spec() -> ToolSpec {
    let description = "Find tools by what they do. Most tools of this server are not listed: search before you say that \
        you cannot do something. Each result has a name, what the tool does, and its parameters (`?`: optional). \
        Then call it with `call_tool`; `describe_tools` returns its schema.";
    reading(ToolSpec::new("search_tools", description)).input(json!({
        "type": "object",
        "properties": {
            "query": { "type": "string", "description": "What the tool does, in a few words; empty for all tools." },
            "limit": { "type": "integer", "minimum": 1, "maximum": MAX_FOUND, "default": FOUND },
            "offset": { "type": "integer", "minimum": 0, "default": 0, "description": "How many results to skip, for the next page." },
        },
        "required": ["query"],
        "additionalProperties": false,
    }))
}

fn describe_spec() -> ToolSpec {
    let description = "Describe tools: the full description and the JSON Schema of the arguments.";
    reading(ToolSpec::new("describe_tools", description)).input(json!({
        "type": "object",
        "properties": {
            "names": {
                "type": "array",
                "items": { "type": "string" },
                "minItems": 1,
                "maxItems": MAX_DESCRIBED,
                "description": "Names from `search_tools`.",
            },
        },
        "required": ["names"],
        "additionalProperties": false,
    }))
}

fn call_spec() -> ToolSpec {
    ToolSpec::new(CALL, "Call a tool from the results of `search_tools`.").input(json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "description": "The name of the tool." },
            "arguments": { "type": "object", "description": "The arguments of the tool." },
        },
        "required": ["name"],
        "additionalProperties": false,
    }))
}

async fn search(args: &Args, lookup: &Lookup) -> Result<Output, ToolError> {
    let query: String = args.decode("query")?;
    let limit = args.decode::<Option<usize>>("limit")?.unwrap_or(FOUND);
    let offset = args.decode::<Option<usize>>("offset")?.unwrap_or_default();
    let open = lookup.open().await?;
    let found = |matching| {
        let all = Search::new(query.as_str()).matching(matching).limit(usize::MAX);
        let found = lookup.catalog.search(&all);
        let names = found.names().into_iter().filter_map(|name| open.get(name).cloned());
        names.collect::<Vec<Arc<ToolSpec>>>()
    };
    let mut tools = found(Matching::Majority);
    if tools.is_empty() {
        // The query may be a whole sentence.
        tools = found(Matching::Any);
    }
    let page: Vec<Value> = tools.iter().skip(offset).take(limit).map(|spec| result(spec)).collect();
    let mut body = json!({ "tools": page, "total": tools.len() });
    if tools.len() > offset.saturating_add(limit) {
        body["next_offset"] = offset.saturating_add(limit).into();
    }
    if tools.is_empty() {
        body["hint"] = format!("No tool matches; there are {} tools. Use other words.", open.len()).into();
    }
    Ok(Output::json(body))
}

/// One result of a search.
fn result(spec: &ToolSpec) -> Value {
    let schema = spec.input_schema.as_value();
    let required: Vec<&str> = spec.input_schema.required().collect();
    let names = schema.get("properties").and_then(Value::as_object).into_iter().flat_map(|all| all.keys());
    let parameters: Vec<String> = names
        .take(MAX_PARAMETERS)
        .map(|name| if required.contains(&name.as_str()) { name.clone() } else { format!("{name}?") })
        .collect();
    let summary: String = spec.summary().chars().take(MAX_SUMMARY).collect();
    json!({ "name": spec.name, "does": summary, "parameters": parameters.join(", ") })
}

async fn describe(args: &Args, lookup: &Lookup) -> Result<Output, ToolError> {
    let names: Vec<String> = args.decode("names")?;
    let open = lookup.open().await?;
    let described = names.iter().map(|name| match open.get(name) {
        Some(spec) => json!({
            "name": spec.name,
            "description": spec.description,
            "input_schema": spec.input_schema.as_value(),
        }),
        None => {
            let mut missing = json!({ "name": shown(name), "error": "unknown tool" });
            if let Some(hint) = did_you_mean(name, open.keys().map(String::as_str)) {
                missing["hint"] = hint.into();
            }
            missing
        }
    });
    let described: Vec<Value> = described.collect();
    Ok(Output::json(json!({ "tools": described })))
}
