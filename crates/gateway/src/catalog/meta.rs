//! The meta-tools, with which a model finds, loads and unloads tools.

mod browse;
mod find;
mod load;

use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolpost_core::{Annotations, Inject, Tool, ToolSpec};

use super::text::truncated;
use super::{CatalogEntry, DynamicSession, ToolSession};

/// The names of the meta-tools, in the order of the offer.
pub const META_TOOL_NAMES: [&str; 6] =
    ["browse_toolkit", "find_tools", "load_tools", "load_tool_group", "unload_tools", "unload_tool_group"];

/// The maximum length of a description in results, in characters.
const MAX_DESCRIPTION: usize = 500;
/// The maximum number of tags in a result, and the maximum length of each.
const MAX_TAGS: usize = 10;
const MAX_TAG: usize = 40;
/// The maximum length of an echoed name, in characters.
const MAX_NAME: usize = 64;
/// The maximum number of names in one call.
const MAX_NAMES: usize = 1000;

const LOAD_HINT: &str =
    "Call `load_tools` with the names that you need, then call the tools; do not search for them again.";

/// Whether a meta-tool has this name.
pub fn is_meta_tool(name: &str) -> bool {
    META_TOOL_NAMES.contains(&name)
}

/// The meta-tools. They use the [`DynamicSession`] that [`DynamicSession::call`] injects.
pub fn meta_tools() -> Vec<Arc<dyn Tool>> {
    vec![
        browse::tool(),
        find::tool(),
        load::tools(),
        load::group(),
        load::unload_tools(),
        load::unload_group(),
    ]
}

/// The spec of a meta-tool.
fn spec(name: &str, description: &str, tags: &[&str], parameters: Value) -> ToolSpec {
    let mut spec = ToolSpec::new(name, description).input(parameters).annotations(Annotations {
        read_only: true,
        idempotent: true,
        ..Annotations::default()
    });
    spec.category = Some("system".to_owned());
    spec.tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
    spec
}

/// A schema of one required list of tool names.
fn names_schema(description: &str) -> Value {
    json!({
        "type": "object",
        "properties": {
            "tool_names": {
                "type": "array",
                "items": { "type": "string" },
                "maxItems": MAX_NAMES,
                "description": description,
            },
        },
        "required": ["tool_names"],
        "additionalProperties": false,
    })
}

/// A schema of one required text.
fn text_schema(name: &str, description: &str) -> Value {
    json!({
        "type": "object",
        "properties": { name: { "type": "string", "minLength": 1, "description": description } },
        "required": [name],
        "additionalProperties": false,
    })
}

type Session = Inject<DynamicSession>;

/// A tool in a list of results.
fn listed(entry: &CatalogEntry, session: &ToolSession) -> Map<String, Value> {
    let active = session.is_active(entry.name());
    let tags: Vec<String> = entry.tags().iter().take(MAX_TAGS).map(|tag| truncated(tag, MAX_TAG)).collect();
    let mut item = Map::new();
    item.insert("name".to_owned(), entry.name().into());
    item.insert("description".to_owned(), truncated(entry.description(), MAX_DESCRIPTION).into());
    item.insert("category".to_owned(), entry.category().map(|text| truncated(text, MAX_NAME)).into());
    item.insert("group".to_owned(), entry.group().map(|text| truncated(text, MAX_NAME)).into());
    item.insert("tags".to_owned(), tags.into());
    item.insert("active".to_owned(), active.into());
    let status = if active { "loaded" } else { "available - call load_tools to activate" };
    item.insert("status".to_owned(), status.into());
    item
}

/// Adds the budget, if any.
fn add_budget(body: &mut Map<String, Value>, session: &ToolSession) {
    if let Some((budget, compact)) = session.pressure() {
        body.insert("budget".to_owned(), serde_json::to_value(budget).unwrap_or_default());
        body.insert("compact_mode".to_owned(), compact.into());
    }
}

/// An object of named values, in this order.
fn object<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
