//! The tools, resources and prompts of a server, as last listed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rmcp::model::{
    ClientRequest, ErrorCode, ListPromptsRequest, ListResourceTemplatesRequest, ListResourcesRequest,
    ListToolsRequest, PaginatedRequestParams, RequestMetaObject,
};
use serde_json::{Map, Value, json};
use toolpost_core::{PromptSpec, ResourceSpec, ToolError, ToolSpec, format_duration};

use super::connection::Connection;
use super::failure::Failure;
use super::settings::Settings;
use crate::convert::inward::Converted;
use crate::convert::{inward, whole};

/// The longest time for which a list is cached.
const MAX_TTL: Duration = Duration::from_hours(24);
/// The most pages of one list.
const MAX_PAGES: usize = 100;
/// The most tools, and as many resources and prompts; further ones are dropped.
const MAX_ITEMS: usize = 2_000;
/// The most problems that are stored for one list.
const MAX_PROBLEMS: usize = 100;

/// A tool and its original name at the server.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) spec: Arc<ToolSpec>,
    pub(super) original: String,
}

/// The tools of a server.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    pub(super) tools: Vec<Arc<Bound>>,
    by_name: HashMap<String, Arc<Bound>>,
    /// The problems of single tools and of the list.
    pub(super) problems: Vec<String>,
    /// When the list expires, by the server's TTL.
    expires: Option<Instant>,
    /// Whether the tools were ever listed.
    is_loaded: bool,
}

impl Catalog {
    pub(super) fn tool(&self, name: &str) -> Option<&Arc<Bound>> {
        self.by_name.get(name)
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    pub(super) fn is_expired(&self) -> bool {
        self.expires.is_some_and(|expires| Instant::now() >= expires)
    }

    /// Whether both have the same tools in the same order.
    pub(super) fn is_same_list(&self, other: &Self) -> bool {
        self.tools.len() == other.tools.len()
            && self.tools.iter().zip(&other.tools).all(|(a, b)| a.spec.digest() == b.spec.digest())
    }

    fn new(tools: Vec<Value>, ttl: Option<u64>, settings: &Settings) -> Self {
        let mut catalog = Self { is_loaded: true, ..Self::default() };
        for (index, tool) in tools.into_iter().enumerate() {
            let shown = match tool.get("name").and_then(Value::as_str) {
                Some(name) => format!("`{}`", inward::shortened(&name.escape_debug().to_string(), 100)),
                None => format!("number {}", index + 1),
            };
            match inward::tool(tool, &settings.name) {
                Ok(made) if catalog.by_name.contains_key(&made.spec.name) => {
                    let name = &made.spec.name;
                    catalog.problem(format!("skipped the tool {shown}: duplicate name `{name}`"));
                }
                Ok(Converted { mut spec, original, problems }) => {
                    for problem in problems {
                        catalog.problem(format!("the tool {shown}: {problem}"));
                    }
                    if spec.input_schema.is_valid(&json!({})).is_err() {
                        // The server checks arguments itself, so a broken schema does not disable the tool.
                        spec = spec.input(json!({ "type": "object" }));
                        catalog.problem(format!("ignored the invalid input schema of the tool {shown}"));
                    }
                    if spec.output_schema.as_ref().is_some_and(|schema| schema.is_valid(&json!({})).is_err())
                    {
                        spec.output_schema = None;
                        catalog.problem(format!("ignored the invalid output schema of the tool {shown}"));
                    }
                    let bound = Arc::new(Bound { spec: Arc::new(spec), original });
                    catalog.by_name.insert(bound.spec.name.clone(), Arc::clone(&bound));
                    catalog.tools.push(bound);
                }
                Err(why) => catalog.problem(format!("skipped the tool {shown}: {why}")),
            }
        }
        catalog.expires =
            ttl.and_then(|ttl| Instant::now().checked_add(Duration::from_millis(ttl).min(MAX_TTL)));
        catalog
    }

    fn problem(&mut self, problem: String) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }
}

/// One page of a list.
struct Page {
    items: Vec<Value>,
    next: Option<String>,
    ttl: Option<u64>,
    problem: Option<String>,
}

/// All pages of a list, up to the limits.
#[derive(Default)]
struct Pages {
    items: Vec<Value>,
    problems: Vec<String>,
    ttl: Option<u64>,
}

/// Requests all pages of a list within the list timeout.
async fn pages(
    connection: &Connection,
    settings: &Settings,
    request: impl Fn(PaginatedRequestParams) -> ClientRequest,
    key: &str,
) -> Result<Pages, Failure> {
    let failed = |error| Err(Failure::Answered(error));
    let work = async {
        let mut all = Pages::default();
        let mut cursor = None;
        for _ in 0..MAX_PAGES {
            let params = PaginatedRequestParams::default().with_cursor(cursor.clone());
            let (answer, notes) = connection.request(request(params), None, RequestMetaObject::new()).await?;
            let Page { items, next, ttl, problem } = match page(answer, key) {
                Ok(page) => page,
                Err(found) => {
                    let found = inward::shortened(&found.to_string(), 300);
                    let message = format!("the server `{}` returned no list `{key}`: {found}", settings.name);
                    return failed(ToolError::dependency(message));
                }
            };
            all.problems.extend(notes.into_sentences());
            all.problems.extend(problem);
            all.items.extend(items);
            all.ttl = ttl.into_iter().chain(all.ttl).min();
            if all.items.len() > MAX_ITEMS {
                all.items.truncate(MAX_ITEMS);
                all.problems.push(format!("truncated the list after {MAX_ITEMS} items"));
                return Ok(all);
            }
            // A repeated cursor would loop forever.
            if next.is_none() || next == cursor {
                return Ok(all);
            }
            cursor = next;
        }
        all.problems.push(format!("truncated the list after {MAX_PAGES} pages"));
        Ok(all)
    };
    let limit = settings.connect_timeout;
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        let (server, limit) = (&settings.name, format_duration(limit));
        failed(ToolError::timeout(format!("listing the server `{server}` timed out after {limit}")))
    })
}

/// Lists the tools.
pub(super) async fn tools(connection: &Connection, settings: &Settings) -> Result<Catalog, Failure> {
    if connection.info.capabilities.tools.is_none() {
        return Ok(Catalog { is_loaded: true, ..Catalog::default() });
    }
    let request = |params| ClientRequest::ListToolsRequest(ListToolsRequest::with_param(params));
    let found = pages(connection, settings, request, "tools").await?;
    let mut catalog = Catalog::new(found.items, found.ttl, settings);
    for problem in found.problems {
        catalog.problem(problem);
    }
    Ok(catalog)
}

/// The items of a list in any form: a list, an object of items by name, or one item.
fn items(value: Value) -> Result<Vec<Value>, Value> {
    let by_name = |fields: Map<String, Value>| {
        let named = fields.into_iter().map(|(name, mut item)| {
            if let Some(fields) = item.as_object_mut() {
                fields.entry("name").or_insert(name.into());
            }
            item
        });
        named.collect()
    };
    match value {
        Value::Array(items) => Ok(items),
        Value::Null => Ok(Vec::new()),
        Value::Object(fields) if fields.values().all(Value::is_object) => Ok(by_name(fields)),
        item @ Value::Object(_) => Ok(vec![item]),
        other => Err(other),
    }
}

/// Parses a page.
///
/// # Errors
/// The value without a list.
fn page(value: Value, key: &str) -> Result<Page, Value> {
    let mut fields = match value {
        Value::Object(fields) => fields,
        // The list without an object around it.
        list @ Value::Array(_) => Map::from_iter([(key.to_owned(), list)]),
        other => return Err(other),
    };
    let Some(list) = fields.shift_remove(key) else { return Err(fields.into()) };
    let items = items(list)?;
    let mut problem = None;
    let next = match fields.shift_remove("nextCursor") {
        None | Some(Value::Null) => None,
        Some(Value::String(next)) => Some(next),
        Some(next @ Value::Number(_)) => Some(next.to_string()),
        Some(other) => {
            let other = inward::shortened(&other.to_string(), 100);
            problem = Some(format!("the list may continue: ignored the invalid `nextCursor` {other}"));
            None
        }
    };
    let ttl = fields.get("ttlMs").and_then(Value::as_number).and_then(whole);
    Ok(Page { items, next, ttl: ttl.and_then(|ttl| u64::try_from(ttl).ok()), problem })
}

/// Lists the resources and resource templates.
pub(super) async fn resources(
    connection: &Connection,
    settings: &Settings,
) -> Result<Vec<Arc<ResourceSpec>>, Failure> {
    if connection.info.capabilities.resources.is_none() {
        return Ok(Vec::new());
    }
    let request = |params| ClientRequest::ListResourcesRequest(ListResourcesRequest::with_param(params));
    let found = pages(connection, settings, request, "resources").await?;
    let mut specs = valid_items(found, inward::resource, &settings.name);
    let request = |params| {
        ClientRequest::ListResourceTemplatesRequest(ListResourceTemplatesRequest::with_param(params))
    };
    match pages(connection, settings, request, "resourceTemplates").await {
        Ok(templates) => specs.extend(valid_items(templates, inward::template, &settings.name)),
        // Some servers have resources but do not know templates.
        Err(Failure::Answered(error)) if is_unknown_method(&error) => {}
        Err(failure) => {
            let error = failure.into_error();
            tracing::warn!(server = settings.name, "listing resource templates failed: {}", error.message());
        }
    }
    Ok(specs)
}

fn is_unknown_method(error: &ToolError) -> bool {
    error.context().get("json_rpc_code").is_some_and(|code| *code == ErrorCode::METHOD_NOT_FOUND.0)
}

/// Lists the prompts.
pub(super) async fn prompts(
    connection: &Connection,
    settings: &Settings,
) -> Result<Vec<Arc<PromptSpec>>, Failure> {
    if connection.info.capabilities.prompts.is_none() {
        return Ok(Vec::new());
    }
    let request = |params| ClientRequest::ListPromptsRequest(ListPromptsRequest::with_param(params));
    let found = pages(connection, settings, request, "prompts").await?;
    Ok(valid_items(found, inward::prompt, &settings.name))
}

/// Converts the items of a list. An invalid item does not lose the others.
fn valid_items<T>(
    found: Pages,
    convert: impl Fn(Value) -> Result<(T, Vec<String>), String>,
    server: &str,
) -> Vec<Arc<T>> {
    for problem in found.problems {
        tracing::warn!(server, "{problem}");
    }
    let mut specs = Vec::new();
    for (index, item) in found.items.into_iter().enumerate() {
        match convert(item) {
            Ok((spec, problems)) => {
                for problem in problems {
                    tracing::warn!(server, "item {} of the list: {problem}", index + 1);
                }
                specs.push(Arc::new(spec));
            }
            Err(why) => tracing::warn!(server, "skipped item {} of the list: {why}", index + 1),
        }
    }
    specs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_any_form_is_read() {
        let a = json!({ "name": "a" });
        for (value, expected, next) in [
            (json!({ "tools": [a] }), Some(json!([a])), None),
            (json!([a]), Some(json!([a])), None),
            (json!({ "tools": a }), Some(json!([a])), None),
            (
                json!({ "tools": { "a": { "title": "A" } } }),
                Some(json!([{ "title": "A", "name": "a" }])),
                None,
            ),
            (json!({ "tools": null }), Some(json!([])), None),
            (json!({ "tools": [], "nextCursor": 2 }), Some(json!([])), Some("2")),
            (json!({ "tools": [], "nextCursor": null, "ttlMs": 5.0 }), Some(json!([])), None),
            (json!({ "tools": 5 }), None, None),
            (json!({}), None, None),
            (json!("tools"), None, None),
        ] {
            let shown = value.to_string();
            let page = page(value, "tools").ok();
            assert_eq!(page.as_ref().map(|page| json!(page.items)), expected, "{shown}");
            assert_eq!(page.and_then(|page| page.next).as_deref(), next, "{shown}");
        }
        let broken = page(json!({ "tools": [], "nextCursor": {} }), "tools").unwrap();
        assert!(broken.problem.unwrap().contains("nextCursor"));
    }
}
