//! What a server has, as it was last told.

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
use crate::convert::inward::{self, SchemaBounds};

/// The longest time for which a list is taken as it was told.
const MAX_TTL: Duration = Duration::from_hours(24);
/// How many problems of one list are kept.
const MAX_PROBLEMS: usize = 100;

/// A tool and how the server calls it.
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
    /// What is wrong with some of them, and with the list.
    pub(super) problems: Vec<String>,
    /// When the server wants it to be asked for again.
    expires: Option<Instant>,
    /// Whether the server was asked at all.
    is_known: bool,
}

impl Catalog {
    pub(super) fn tool(&self, name: &str) -> Option<&Arc<Bound>> {
        self.by_name.get(name)
    }

    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    pub(super) fn is_expired(&self) -> bool {
        self.expires.is_some_and(|expires| Instant::now() >= expires)
    }

    /// Whether it has the same tools, in the same order.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.tools.len() == other.tools.len()
            && self.tools.iter().zip(&other.tools).all(|(a, b)| a.spec.digest() == b.spec.digest())
    }

    fn new(tools: Vec<Result<Tool, String>>, ttl: Option<u64>, settings: &Settings) -> Self {
        let limits = &settings.limits;
        let bounds = SchemaBounds { depth: limits.schema_depth, bytes: limits.schema_bytes };
        let mut catalog = Self { is_known: true, ..Self::default() };
        for (index, tool) in tools.into_iter().enumerate() {
            let shown = match &tool {
                Ok(tool) => format!("`{}`", inward::shortened(&tool.name.escape_debug().to_string(), 100)),
                Err(_) => format!("number {}", index + 1),
            };
            let made = tool.and_then(|tool| inward::tool(tool, &settings.name, bounds));
            match made {
                Ok((spec, _)) if catalog.by_name.contains_key(&spec.name) => {
                    let name = &spec.name;
                    catalog.problem(format!("the tool {shown} is not listed: `{name}` is there already"));
                }
                Ok((mut spec, original)) => {
                    if spec.input_schema.is_valid(&json!({})).is_err() {
                        // The server checks what it gets; a broken schema is no reason to call nothing.
                        spec = spec.input(json!({ "type": "object" }));
                        catalog
                            .problem(format!("the input schema of the tool {shown} is none, and is ignored"));
                    }
                    if spec.output_schema.as_ref().is_some_and(|schema| schema.is_valid(&json!({})).is_err())
                    {
                        spec.output_schema = None;
                        catalog.problem(format!(
                            "the output schema of the tool {shown} is none, and is ignored"
                        ));
                    }
                    let bound = Arc::new(Bound { spec: Arc::new(spec), original });
                    catalog.by_name.insert(bound.spec.name.clone(), Arc::clone(&bound));
                    catalog.tools.push(bound);
                }
                Err(why) => catalog.problem(format!("the tool {shown} is not listed: {why}")),
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

/// All pages of a list, up to the bounds; and what is wrong with the rest.
struct Pages<T> {
    items: Vec<Result<T, String>>,
    problem: Option<String>,
    ttl: Option<u64>,
}

async fn pages<T>(
    connection: &Connection,
    settings: &Settings,
    request: impl Fn(PaginatedRequestParams) -> ClientRequest,
    page: impl Fn(ServerResult) -> Option<Page<T>>,
) -> Result<Pages<T>, Failure> {
    let limits = &settings.limits;
    let mut all = Pages { items: Vec::new(), problem: None, ttl: None };
    let mut cursor = None;
    for _ in 0..limits.pages {
        let params = PaginatedRequestParams::default().with_cursor(cursor.clone());
        let answer = connection.request(request(params), None, RequestMetaObject::new()).await?;
        let Some(Page { items, next, ttl }) = page(answer) else {
            return Err(Failure::Answered(ToolError::dependency(format!(
                "the server `{}` answered with no list",
                settings.name
            ))));
        };
        // A repeated cursor would never end.
        let goes_on = next.is_some() && next != cursor;
        all.items.extend(items);
        all.ttl = ttl.map(|ttl| all.ttl.map_or(ttl, |known: u64| known.min(ttl))).or(all.ttl);
        if all.items.len() > limits.items {
            all.items.truncate(limits.items);
            all.problem = Some(format!("of the list only the first {} are taken", limits.items));
            return Ok(all);
        }
        if !goes_on {
            return Ok(all);
        }
        cursor = next;
    }
    all.problem = Some(format!("of the list only the first {} pages are taken", limits.pages));
    Ok(all)
}

/// Within the time for a list.
async fn in_time<T>(
    settings: &Settings,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let limit = settings.list_timeout;
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        Err(Failure::Answered(ToolError::timeout(format!(
            "the server `{}` did not list what it has within {}",
            settings.name,
            format_duration(limit)
        ))))
    })
}

/// Asks for the tools.
pub(super) async fn tools(connection: &Connection, settings: &Settings) -> Result<Catalog, Failure> {
    if connection.info.capabilities.tools.is_none() {
        return Ok(Catalog { is_known: true, ..Catalog::default() });
    }
    let found = in_time(
        settings,
        pages(
            connection,
            settings,
            |params| ClientRequest::ListToolsRequest(ListToolsRequest::with_param(params)),
            |answer| match answer {
                ServerResult::ListToolsResult(page) => Some(Page {
                    items: page.tools.into_iter().map(Ok).collect(),
                    next: page.next_cursor,
                    ttl: page.ttl_ms,
                }),
                ServerResult::CustomResult(CustomResult(value)) => page_of(value, "tools"),
                _ => None,
            },
        ),
    )
    .await?;
    let mut catalog = Catalog::new(found.items, found.ttl, settings);
    if let Some(problem) = found.problem {
        catalog.problem(problem);
    }
    Ok(catalog)
}

/// A page of which some items cannot be read: the others are taken.
fn page_of<T: DeserializeOwned>(value: Value, key: &str) -> Option<Page<T>> {
    let Value::Object(mut fields) = value else { return None };
    let Some(Value::Array(items)) = fields.shift_remove(key) else { return None };
    let items = items
        .into_iter()
        .map(|item| {
            serde_json::from_value(item)
                .map_err(|error| format!("it is none: {}", inward::shortened(&error.to_string(), 200)))
        })
        .collect();
    let next = fields.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
    Some(Page { items, next, ttl: fields.get("ttlMs").and_then(Value::as_u64) })
}

/// Asks for the resources, those with many addresses included.
pub(super) async fn resources(
    connection: &Connection,
    settings: &Settings,
) -> Result<Vec<Arc<ResourceSpec>>, Failure> {
    if connection.info.capabilities.resources.is_none() {
        return Ok(Vec::new());
    }
    let fixed = pages(
        connection,
        settings,
        |params| ClientRequest::ListResourcesRequest(ListResourcesRequest::with_param(params)),
        |answer| match answer {
            ServerResult::ListResourcesResult(page) => Some(Page {
                items: page.resources.into_iter().map(inward::resource).collect(),
                next: page.next_cursor,
                ttl: page.ttl_ms,
            }),
            _ => None,
        },
    );
    let mut found = in_time(settings, fixed).await?.items;
    let templates = pages(
        connection,
        settings,
        |params| {
            ClientRequest::ListResourceTemplatesRequest(ListResourceTemplatesRequest::with_param(params))
        },
        |answer| match answer {
            ServerResult::ListResourceTemplatesResult(page) => Some(Page {
                items: page.resource_templates.into_iter().map(inward::template).collect(),
                next: page.next_cursor,
                ttl: page.ttl_ms,
            }),
            _ => None,
        },
    );
    // Some servers have resources and know nothing of templates.
    if let Ok(templates) = in_time(settings, templates).await {
        found.extend(templates.items);
    }
    Ok(taken(found, &settings.name))
}

/// Asks for the prompts.
pub(super) async fn prompts(
    connection: &Connection,
    settings: &Settings,
) -> Result<Vec<Arc<PromptSpec>>, Failure> {
    if connection.info.capabilities.prompts.is_none() {
        return Ok(Vec::new());
    }
    let found = pages(
        connection,
        settings,
        |params| ClientRequest::ListPromptsRequest(ListPromptsRequest::with_param(params)),
        |answer| match answer {
            ServerResult::ListPromptsResult(page) => Some(Page {
                items: page.prompts.into_iter().map(|prompt| Ok(inward::prompt(prompt))).collect(),
                next: page.next_cursor,
                ttl: page.ttl_ms,
            }),
            _ => None,
        },
    );
    Ok(taken(in_time(settings, found).await?.items, &settings.name))
}

fn taken<T>(items: Vec<Result<T, String>>, server: &str) -> Vec<Arc<T>> {
    items
        .into_iter()
        .filter_map(|item| {
            item.inspect_err(|why| tracing::warn!(server, "something is not listed: {why}")).ok()
        })
        .map(Arc::new)
        .collect()
}
