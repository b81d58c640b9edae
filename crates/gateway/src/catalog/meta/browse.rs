//! `browse_toolkit`: search by words and filters.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolpost_core::{Args, IntoTool, Output, Tool, ToolError, tool_fn};

use super::{LOAD_HINT, MAX_NAME, Session, add_budget, is_meta_tool, listed, object, spec, truncated};
use crate::catalog::{Hit, Search};

/// The maximum number of tools on one page.
const MAX_PAGE: usize = 100;
/// The maximum number of listed categories and groups.
const MAX_CATEGORIES: usize = 200;
/// The maximum length of an echoed filter, in characters.
const MAX_ECHO: usize = 200;

pub(super) fn tool() -> Arc<dyn Tool> {
    let description = "Search for tools that are not loaded yet, by words, category or group. \
        Each result has a name, a description, a category and tags. \
        Load what you need with `load_tools`; do not search again for tools that you have seen.";
    let schema = json!({
        "type": "object",
        "properties": {
            "query": {
                "type": ["string", "null"],
                "description": "Words to look for in names, descriptions, tags, categories and groups; null for all tools.",
            },
            "category": {
                "type": ["string", "null"],
                "description": "Only tools of this category; null for all.",
            },
            "group": {
                "type": ["string", "null"],
                "description": "Only tools of this group and its subgroups: `crm` includes `crm.contacts`; null for all.",
            },
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_PAGE,
                "default": 10,
                "description": "The maximum number of results.",
            },
            "offset": {
                "type": "integer",
                "minimum": 0,
                "default": 0,
                "description": "The number of results to skip, for the next page.",
            },
        },
        "additionalProperties": false,
    });
    let spec = spec("browse_toolkit", description, &["meta", "discovery"], schema);
    tool_fn(spec, async |args, ctx| {
        let session: Session = ctx.inject()?;
        // If the sources cannot be listed, the known tools count.
        if let Err(error) = session.catalog().refresh().await {
            tracing::warn!("the catalog may be stale: {error}");
        }
        browse(&args, &session)
    })
    .into_tool()
}

fn browse(args: &Args, dynamic: &Session) -> Result<Output, ToolError> {
    let text = |name: &str| -> Result<Option<String>, ToolError> {
        Ok(args.decode::<Option<String>>(name)?.filter(|text| !text.trim().is_empty()))
    };
    let (query, category, group) = (text("query")?, text("category")?, text("group")?);
    let offset = args.decode::<Option<usize>>("offset")?.unwrap_or_default();
    let mut search = Search::all().limit(args.decode::<Option<usize>>("limit")?.unwrap_or(10)).offset(offset);
    (search.query, search.category, search.group) = (query.clone(), category.clone(), group.clone());
    let (catalog, session) = (dynamic.catalog(), dynamic.session());
    let found = catalog.search(&search);
    let results: Vec<Value> = found.hits.iter().map(|hit| result(hit, dynamic)).collect();
    let loaded = results.iter().filter(|result| result["active"] == true).count();
    let mut body = object([
        ("results", results.clone().into()),
        ("total_found", results.len().into()),
        ("total_matched", found.total.into()),
        ("available_categories", some(catalog.list_categories())),
        ("available_groups", some(catalog.list_groups())),
    ]);
    if loaded < results.len() {
        body.insert("hint".to_owned(), LOAD_HINT.into());
    } else if loaded > 0 {
        body.insert("hint".to_owned(), format!("All {loaded} are loaded already: call them.").into());
    }
    for (name, value) in [("query", query), ("category_filter", category), ("group_filter", group)] {
        if let Some(value) = value {
            body.insert(name.to_owned(), truncated(&value, MAX_ECHO).into());
        }
    }
    if offset > 0 {
        body.insert("offset".to_owned(), offset.into());
    }
    if found.total > offset.saturating_add(results.len()) {
        body.insert("has_more".to_owned(), true.into());
    }
    add_budget(&mut body, session);
    Ok(Output::json(Value::Object(body)).with_payload(Value::Array(results)))
}

fn result(hit: &Hit, dynamic: &Session) -> Value {
    let mut item: Map<String, Value> = listed(&hit.entry, dynamic.session());
    // Counting tokens is slow, so only results are counted.
    let tokens = hit.entry.estimated_tokens();
    if tokens > 0 && !is_meta_tool(hit.entry.name()) {
        item.insert("estimated_tokens".to_owned(), tokens.into());
    }
    Value::Object(item)
}

fn some(names: Vec<String>) -> Value {
    names.into_iter().take(MAX_CATEGORIES).map(|name| truncated(&name, MAX_NAME)).collect::<Vec<_>>().into()
}
