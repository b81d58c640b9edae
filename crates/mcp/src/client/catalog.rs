//! The tools, resources and prompts of a server, as last listed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rmcp::model::{
    ClientRequest, CustomResult, ListPromptsRequest, ListResourceTemplatesRequest, ListResourcesRequest,
    ListToolsRequest, PaginatedRequestParams, RequestMetaObject, ServerResult, Tool,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use toolpost_core::{PromptSpec, ResourceSpec, ToolError, ToolSpec, format_duration};

use super::connection::Connection;
use super::failure::Failure;
use super::settings::Settings;
use crate::convert::inward;

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

    fn new(tools: Vec<Result<Tool, String>>, ttl: Option<u64>, settings: &Settings) -> Self {
        let mut catalog = Self { is_loaded: true, ..Self::default() };
        for (index, tool) in tools.into_iter().enumerate() {
            let shown = match &tool {
                Ok(tool) => format!("`{}`", inward::shortened(&tool.name.escape_debug().to_string(), 100)),
                Err(_) => format!("number {}", index + 1),
            };
            let converted = tool.and_then(|tool| inward::tool(tool, &settings.name));
            match converted {
                Ok((spec, _)) if catalog.by_name.contains_key(&spec.name) => {
                    let name = &spec.name;
                    catalog.problem(format!("skipped the tool {shown}: duplicate name `{name}`"));
                }
                Ok((mut spec, original)) => {
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
struct Page<T> {
    items: Vec<Result<T, String>>,
    next: Option<String>,
    ttl: Option<u64>,
}

/// All pages of a list, up to the limits.
struct Pages<T> {
    items: Vec<Result<T, String>>,
    problem: Option<String>,
    ttl: Option<u64>,
}

/// Requests all pages of a list within the list timeout.
async fn pages<T>(
    connection: &Connection,
    settings: &Settings,
    request: impl Fn(PaginatedRequestParams) -> ClientRequest,
    page: impl Fn(ServerResult) -> Option<Page<T>>,
) -> Result<Pages<T>, Failure> {
    let failed = |error| Err(Failure::Answered(error));
    let work = async {
        let mut all = Pages { items: Vec::new(), problem: None, ttl: None };
        let mut cursor = None;
        for _ in 0..MAX_PAGES {
            let params = PaginatedRequestParams::default().with_cursor(cursor.clone());
            let answer = connection.request(request(params), None, RequestMetaObject::new()).await?;
            let Some(Page { items, next, ttl }) = page(answer) else {
                let message = format!("the server `{}` returned no list", settings.name);
                return failed(ToolError::dependency(message));
            };
            all.items.extend(items);
            all.ttl = ttl.into_iter().chain(all.ttl).min();
            if all.items.len() > MAX_ITEMS {
                all.items.truncate(MAX_ITEMS);
                all.problem = Some(format!("truncated the list after {MAX_ITEMS} items"));
                return Ok(all);
            }
            // A repeated cursor would loop forever.
            if next.is_none() || next == cursor {
                return Ok(all);
            }
            cursor = next;
        }
        all.problem = Some(format!("truncated the list after {MAX_PAGES} pages"));
        Ok(all)
    };
    let limit = settings.connect_timeout;
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        let (server, limit) = (&settings.name, format_duration(limit));
        failed(ToolError::timeout(format!("listing the server `{server}` timed out after {limit}")))
    })
}

/// Requests a list of one kind; `$convert` converts an item.
macro_rules! pages_of {
    ($connection:ident, $settings:ident, $request:ident, $result:ident, $key:literal, $items:ident, $convert:expr) => {
        pages(
            $connection,
            $settings,
            |params| ClientRequest::$request($request::with_param(params)),
            |answer| match answer {
                ServerResult::$result(page) => Some(Page {
                    items: page.$items.into_iter().map($convert).collect(),
                    next: page.next_cursor,
                    ttl: page.ttl_ms,
                }),
                ServerResult::CustomResult(CustomResult(value)) => page_of(value, $key, $convert),
                _ => None,
            },
        )
        .await
    };
}

/// Lists the tools.
pub(super) async fn tools(connection: &Connection, settings: &Settings) -> Result<Catalog, Failure> {
    if connection.info.capabilities.tools.is_none() {
        return Ok(Catalog { is_loaded: true, ..Catalog::default() });
    }
    let found = pages_of!(connection, settings, ListToolsRequest, ListToolsResult, "tools", tools, Ok)?;
    let mut catalog = Catalog::new(found.items, found.ttl, settings);
    if let Some(problem) = found.problem {
        catalog.problem(problem);
    }
    Ok(catalog)
}

/// Parses a page item by item, so one invalid item does not lose the others.
fn page_of<Item: DeserializeOwned, T>(
    value: Value,
    key: &str,
    convert: impl Fn(Item) -> Result<T, String>,
) -> Option<Page<T>> {
    let Value::Object(mut fields) = value else { return None };
    let Some(Value::Array(items)) = fields.shift_remove(key) else { return None };
    let items = items
        .into_iter()
        .map(|item| {
            let invalid = |error: serde_json::Error| {
                format!("invalid definition: {}", inward::shortened(&error.to_string(), 200))
            };
            serde_json::from_value(item).map_err(invalid).and_then(&convert)
        })
        .collect();
    let next = fields.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
    Some(Page { items, next, ttl: fields.get("ttlMs").and_then(Value::as_u64) })
}

/// Lists the resources and resource templates.
pub(super) async fn resources(
    connection: &Connection,
    settings: &Settings,
) -> Result<Vec<Arc<ResourceSpec>>, Failure> {
    if connection.info.capabilities.resources.is_none() {
        return Ok(Vec::new());
    }
    let resource = inward::resource;
    let mut found = pages_of!(
        connection,
        settings,
        ListResourcesRequest,
        ListResourcesResult,
        "resources",
        resources,
        resource
    )?
    .items;
    let template = inward::template;
    let templates = pages_of!(
        connection,
        settings,
        ListResourceTemplatesRequest,
        ListResourceTemplatesResult,
        "resourceTemplates",
        resource_templates,
        template
    );
    // Some servers have resources but do not know templates.
    if let Ok(templates) = templates {
        found.extend(templates.items);
    }
    Ok(valid_items(found, &settings.name))
}

/// Lists the prompts.
pub(super) async fn prompts(
    connection: &Connection,
    settings: &Settings,
) -> Result<Vec<Arc<PromptSpec>>, Failure> {
    if connection.info.capabilities.prompts.is_none() {
        return Ok(Vec::new());
    }
    let prompt = |prompt| Ok(inward::prompt(prompt));
    let found =
        pages_of!(connection, settings, ListPromptsRequest, ListPromptsResult, "prompts", prompts, prompt)?;
    Ok(valid_items(found.items, &settings.name))
}

fn valid_items<T>(items: Vec<Result<T, String>>, server: &str) -> Vec<Arc<T>> {
    items
        .into_iter()
        .filter_map(|item| {
            item.inspect_err(|why| tracing::warn!(server, "skipped an item of the list: {why}")).ok()
        })
        .map(Arc::new)
        .collect()
}
