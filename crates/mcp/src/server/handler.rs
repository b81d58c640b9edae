//! Implements the MCP methods over a tool source.

use std::collections::HashSet;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::Either;
use futures_util::stream::FuturesUnordered;
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CancelTaskParams, ClientCapabilities,
    CompleteRequestParams, CompleteResult, CompletionInfo, CreateTaskResult, GetPromptRequestParams,
    GetPromptResponse, GetTaskParams, GetTaskResult, Implementation, InputResponses, ListPromptsResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    PromptsCapability, ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse, Reference,
    ResourcesCapability, ServerCapabilities, ServerConfig, SubscribeRequestParams, SubscriptionFilter,
    TASKS_EXTENSION_ID, Tool, ToolsCapability, UnsubscribeRequestParams, UpdateTaskParams,
};
#[expect(deprecated, reason = "older clients set log levels")]
use rmcp::model::{LoggingLevel, SetLevelRequestParams};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Map, Value, json};
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;
use toolpost_core::{
    Call, Caller, Cancellation, Code, LogLevel, ResourceSpec, Scope, TaskUse, ToolError, ToolSource,
    ToolSpec, unlisted_tool,
};

use super::builder::{Completer, Completion};
use super::calls::{Active, Notifier, Parking, Step};
use super::changes::Changes;
use super::client::create_private;
use super::guard::Guard;
use super::listing::{LIST_TIMEOUT, Listings, in_time};
use super::port::{Abilities, CAPABILITY, CallPort};
use super::request::{Operation, OperationKind, Outcome, RoundInput, TaskPlan, ask_legacy_client};
use super::tasks::{Rerun, TaskBody, Tasks, is_rerunnable};
use super::watch::Subscriptions;
use super::{Certificate, Principal, ServerLimits};
use crate::convert::{ERROR, log_level, outward};

/// The longest forwarded `_meta` value and client name, in bytes.
const MAX_META_VALUE: usize = 1_024;
/// The `_meta` keys that are forwarded to the call's metadata.
const FORWARDED_META: [&str; 4] = ["traceparent", "tracestate", "baggage", "claudecode/toolUseId"];
/// The JSON-RPC error code for a missing client capability.
const MISSING_CAPABILITY: i32 = -32021;

/// The state that all connections of a server share.
pub(super) struct Shared {
    pub(super) source: Arc<dyn ToolSource>,
    pub(super) name: String,
    pub(super) version: String,
    pub(super) instructions: Option<String>,
    pub(super) limits: ServerLimits,
    pub(super) calls: Arc<Semaphore>,
    /// The number of calls that were started.
    pub(super) started_calls: AtomicU64,
    pub(super) parking: Arc<Parking>,
    pub(super) tasks: Arc<Tasks>,
    pub(super) listings: Listings,
    pub(super) changes: Changes,
    pub(super) completer: Option<Completer>,
    pub(super) guard: Guard,
    pub(super) tls: Option<Certificate>,
    /// The parent of the clients' working directories.
    pub(super) directories: Option<PathBuf>,
    /// The server info for clients.
    pub(super) info: OnceCell<ServerConfig>,
    /// The scopes of clients without a session, by principal, most recent last.
    pub(super) scopes: Mutex<Vec<(Principal, Scope)>>,
}

impl Shared {
    /// Reads the source's lists for the server info, recovers tasks of a previous run, and starts to watch
    /// for changes.
    ///
    /// # Errors
    /// The task store cannot be read.
    pub(super) async fn prepare(self: &Arc<Self>) -> Result<(), ToolError> {
        let listed = self.listings.current(&*self.source).await;
        let shared = Arc::clone(self);
        self.info
            .get_or_init(async move || {
                if let Err(error) = listed {
                    tracing::warn!("{error}");
                }
                let source = &shared.source;
                // A list that cannot be read now may be readable later.
                let has_resources = in_time(source.resources()).await.map_or(true, |list| !list.is_empty());
                let has_prompts = in_time(source.prompts()).await.map_or(true, |list| !list.is_empty());
                shared.describe(has_resources, has_prompts)
            })
            .await;
        Tasks::recover(self).await?;
        Changes::watch(self);
        Ok(())
    }

    fn describe(&self, has_resources: bool, has_prompts: bool) -> ServerConfig {
        let mut capabilities = ServerCapabilities::default();
        let mut tools = ToolsCapability::default();
        tools.list_changed = Some(true);
        capabilities.tools = Some(tools);
        capabilities.logging = Some(Map::new());
        if has_resources {
            let mut resources = ResourcesCapability::default();
            resources.list_changed = Some(true);
            resources.subscribe = Some(true);
            capabilities.resources = Some(resources);
        }
        if has_prompts {
            let mut prompts = PromptsCapability::default();
            prompts.list_changed = Some(true);
            capabilities.prompts = Some(prompts);
        }
        if self.limits.tasks > 0 {
            let known = capabilities.extensions.get_or_insert_default();
            known.insert(TASKS_EXTENSION_ID.to_owned(), Map::new());
        }
        if self.completer.is_some() {
            capabilities.completions = Some(Map::new());
        }
        let config =
            ServerConfig::new(capabilities).with_server_info(Implementation::new(&self.name, &self.version));
        match &self.instructions {
            Some(instructions) => config.with_instructions(instructions),
            None => config,
        }
    }

    /// The scope of clients without a session.
    pub(super) fn scope_of(&self, principal: &Principal) -> Scope {
        let mut scopes = self.scopes.lock().unwrap_or_else(PoisonError::into_inner);
        let known = scopes.iter().position(|(known, _)| known == principal);
        let entry = match known {
            Some(place) => scopes.remove(place),
            None => (principal.clone(), self.new_scope(principal)),
        };
        if scopes.len() >= self.limits.sessions {
            scopes.remove(0);
        }
        let scope = entry.1.clone();
        scopes.push(entry);
        scope
    }

    /// A conversation of a client, in its own working directory if clients have some.
    fn new_scope(&self, principal: &Principal) -> Scope {
        let scope = Scope::new(principal.key().unwrap_or("mcp"));
        match self.directories.as_ref().zip(principal.key()) {
            None => scope,
            Some((parent, key)) => {
                let directory = parent.join(key);
                match create_private(&directory) {
                    Ok(()) => scope.with_working_dir(directory),
                    Err(error) => {
                        // The tools report to the client that it has none.
                        tracing::error!("cannot create `{}`: {error}", directory.display());
                        scope
                    }
                }
            }
        }
    }
}

pub(super) fn caller_of(principal: &Principal) -> Caller {
    let caller = Caller::new("mcp");
    match principal.name() {
        Some(name) => caller.with_identity(name),
        None => caller,
    }
}

/// Handles one connection, one session, or one sessionless request.
#[derive(Clone)]
pub(super) struct Handler {
    pub(super) shared: Arc<Shared>,
    session: Arc<Session>,
}

struct Session {
    principal: Principal,
    /// Whether the connection is one conversation.
    is_connection: bool,
    scope: std::sync::OnceLock<Scope>,
    /// The minimum log level that a legacy client set.
    level: Mutex<LogLevel>,
    subscriptions: Subscriptions,
}

impl Handler {
    /// A handler for a connection that is one conversation.
    pub(super) fn of_connection(shared: Arc<Shared>, principal: Principal) -> Self {
        Self::new(shared, principal, true)
    }

    /// A handler for HTTP, where each request has its own principal.
    pub(super) fn of_http(shared: Arc<Shared>) -> Self {
        Self::new(shared, Principal::default(), false)
    }

    fn new(shared: Arc<Shared>, principal: Principal, is_connection: bool) -> Self {
        let session = Session {
            principal,
            is_connection,
            scope: std::sync::OnceLock::new(),
            level: Mutex::new(LogLevel::Info),
            subscriptions: Subscriptions::default(),
        };
        Self { shared, session: Arc::new(session) }
    }

    pub(super) fn principal(&self, context: &RequestContext<RoleServer>) -> Principal {
        let parts = context.extensions.get::<http::request::Parts>();
        parts.and_then(|parts| parts.extensions.get::<Principal>()).unwrap_or(&self.session.principal).clone()
    }

    fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        context: &RequestContext<RoleServer>,
        port: &Arc<CallPort>,
    ) -> Call {
        let principal = self.principal(context);
        let caller = caller_of(&principal);
        let has_session = self.session.is_connection
            || context
                .extensions
                .get::<http::request::Parts>()
                .is_some_and(|parts| parts.headers.contains_key(super::sessions::SESSION_HEADER));
        let scope = if has_session {
            self.session.scope.get_or_init(|| self.shared.new_scope(&principal)).clone()
        } else {
            self.shared.scope_of(&principal)
        };
        let mut call = Call::new(name, Value::Object(arguments))
            .with_caller(caller)
            .with_scope(scope)
            .with_cancellation(Cancellation::new())
            .with_port(Arc::clone(port) as _);
        let forwarded =
            FORWARDED_META.iter().filter_map(|key| Some((*key, context.meta.get(*key)?.as_str()?)));
        for (key, value) in forwarded.filter(|(_, value)| value.len() <= MAX_META_VALUE) {
            call.options.metadata.insert(key.to_owned(), value.into());
        }
        call
    }

    fn abilities(
        &self,
        capabilities: Option<&ClientCapabilities>,
        context: &RequestContext<RoleServer>,
        is_legacy: bool,
    ) -> Abilities {
        let mut abilities = Abilities::from_capabilities(capabilities);
        abilities.progress = context.meta.get_progress_token().is_some();
        abilities.log = if is_legacy {
            Some(*self.session.level.lock().unwrap_or_else(PoisonError::into_inner))
        } else {
            context.meta.log_level().map(minimum_level)
        };
        abilities
    }

    /// Starts a call, or resumes the parked call that these answers belong to.
    async fn run(
        &self,
        operation: Operation,
        round: RoundInput,
        mut plan: Option<TaskPlan>,
        capabilities: Option<&ClientCapabilities>,
        context: &RequestContext<RoleServer>,
    ) -> Result<Outcome, ErrorData> {
        let is_legacy = is_legacy(context);
        let abilities = self.abilities(capabilities, context, is_legacy);
        let principal = self.principal(context);
        let bound = operation.binding(principal.key());
        let tool = operation.name.clone();
        let slow_at = plan.map(|plan| Instant::now() + plan.after);
        let mut notifier = Notifier::new(
            context.peer.clone(),
            context.meta.get_progress_token(),
            &operation.name,
            self.shared.limits.write_time,
        );
        let mut active = match round.state {
            Some(sealed) if !is_legacy => {
                match self.shared.parking.resume(&sealed, round.answers, abilities, &bound)? {
                    Either::Left(active) => active,
                    Either::Right(required) => return Ok(Outcome::InputRequired(required)),
                }
            }
            _ => self.begin(operation, round.answers, abilities, context),
        };
        let mut asking = FuturesUnordered::new();
        loop {
            let step = if plan.is_some_and(|plan| plan.after.is_zero()) {
                Step::Slow
            } else {
                let mut step = pin!(active.step(&mut notifier, slow_at.filter(|_| plan.is_some())));
                loop {
                    tokio::select! {
                        biased;
                        step = &mut step => break step,
                        () = context.ct.cancelled() => {
                            return Err(ErrorData::internal_error("the request was cancelled", None));
                        }
                        Some(()) = asking.next(), if !asking.is_empty() => {}
                    }
                }
            };
            match step {
                Step::Done(result) => return Ok(Outcome::Done(result)),
                Step::Slow => {
                    let Some(planned) = plan.take() else { continue };
                    let arguments = active.arguments.clone().filter(|_| planned.is_rerunnable);
                    let rerun = arguments.map(|arguments| Rerun::new((*arguments).clone(), abilities));
                    let record = TaskBody::new(&principal, &tool, rerun);
                    match self.shared.tasks.adopt(active, record).await {
                        Ok(task) => return Ok(Outcome::Task(CreateTaskResult::new(task))),
                        Err(Some(failed)) if !planned.is_required => active = failed.0,
                        Err(Some(failed)) => return Ok(Outcome::Done(Err(failed.1))),
                        Err(None) => {
                            return Err(ErrorData::internal_error("creating the task panicked", None));
                        }
                    }
                }
                Step::Asked(questions) if is_legacy => {
                    let peer = &context.peer;
                    let ask = |question| ask_legacy_client(peer.clone(), question);
                    asking.extend(questions.into_iter().map(ask));
                }
                Step::Asked(questions) => match self.shared.parking.park(active, questions, &bound) {
                    Ok(required) => return Ok(Outcome::InputRequired(required)),
                    Err(unparked) => active = unparked,
                },
            }
        }
    }

    fn begin(
        &self,
        operation: Operation,
        answers: InputResponses,
        abilities: Abilities,
        context: &RequestContext<RoleServer>,
    ) -> Active {
        let port = Arc::new(CallPort::new(abilities, answers));
        let permit = Arc::clone(&self.shared.calls).try_acquire_owned();
        let limit = self.shared.limits.calls;
        let source = Arc::clone(&self.shared.source);
        self.shared.started_calls.fetch_add(1, Ordering::Relaxed);
        let Operation { kind, name, arguments } = operation;
        let call = self.call(&name, arguments, context, &port);
        let (id, arguments) = (call.id, Arc::clone(&call.arguments));
        let future = Box::pin(async move {
            let Ok(_permit) = permit else {
                return Err(ToolError::overloaded(format!("too many calls: at most {limit} run at once")));
            };
            let result = match kind {
                OperationKind::Call => source.call(call).await.result,
                OperationKind::Render => source.render(call).await,
                OperationKind::Read => source.read(call).await,
            };
            result.map_err(|error| error.public(id))
        });
        let mut active = Active::new(future, port);
        active.arguments = Some(arguments);
        active
    }

    /// Whether and when a call becomes a task.
    ///
    /// # Errors
    /// The tool requires task support that the client lacks.
    fn plan(
        &self,
        spec: &ToolSpec,
        capabilities: Option<&ClientCapabilities>,
        is_legacy: bool,
    ) -> Result<Option<TaskPlan>, ErrorData> {
        let supports_tasks = self.shared.limits.tasks > 0
            && !is_legacy
            && capabilities.is_some_and(ClientCapabilities::supports_tasks);
        let after = match spec.task {
            TaskUse::Only if !supports_tasks => {
                let needed = ClientCapabilities::builder().enable_tasks().build();
                return Err(ErrorData::missing_required_client_capability(needed));
            }
            TaskUse::WhenSlow => self.shared.limits.task_after,
            TaskUse::AtOnce | TaskUse::Only => Duration::ZERO,
            TaskUse::Never => return Ok(None),
        };
        let is_required = spec.task == TaskUse::Only;
        Ok(supports_tasks.then(|| TaskPlan { after, is_required, is_rerunnable: is_rerunnable(spec) }))
    }

    /// The source as seen by this caller, if that differs from the full view.
    fn view(&self, context: &RequestContext<RoleServer>) -> Option<Arc<dyn ToolSource>> {
        let mut caller = caller_of(&self.principal(context));
        if let Some(program) = context.client_info().filter(|info| info.name.len() <= MAX_META_VALUE) {
            caller = caller.with_program(program.name);
        }
        self.shared.source.seen_by(&caller)
    }

    /// The names of the tools that this caller may see; `None` if it may see all.
    async fn open(&self, context: &RequestContext<RoleServer>) -> Result<Option<HashSet<String>>, ErrorData> {
        let Some(view) = self.view(context) else { return Ok(None) };
        let open = in_time(view.list()).await.map_err(|error| rpc_error(&error))?;
        Ok(Some(open.iter().map(|spec| spec.name.clone()).collect()))
    }

    async fn resource_specs(
        &self,
        context: &RequestContext<RoleServer>,
    ) -> Result<Vec<Arc<ResourceSpec>>, ErrorData> {
        let source = self.view(context).unwrap_or_else(|| Arc::clone(&self.shared.source));
        in_time(source.resources()).await.map_err(|error| rpc_error(&error))
    }

    /// One page of a list.
    fn page<T: Clone>(
        &self,
        items: &[T],
        request: Option<PaginatedRequestParams>,
    ) -> Result<(Vec<T>, Option<String>), ErrorData> {
        let begin = match request.and_then(|request| request.cursor) {
            None => 0,
            Some(cursor) => {
                cursor.parse::<usize>().ok().filter(|begin| *begin < items.len()).ok_or_else(|| {
                    ErrorData::invalid_params("the cursor is invalid; list again without a cursor", None)
                })?
            }
        };
        let end = begin.saturating_add(self.shared.limits.page).min(items.len());
        let next = (end < items.len()).then(|| end.to_string());
        Ok((items.get(begin..end).unwrap_or_default().to_vec(), next))
    }
}

/// A page of a list as a result, which clients must not cache.
macro_rules! page_result {
    ($handler:ident, $result:ident, $items:expr, $request:ident, $context:ident) => {{
        let (items, next) = $handler.page($items, $request)?;
        let mut result = $result::with_all_items(items);
        result.next_cursor = next;
        Ok(if is_legacy(&$context) {
            result
        } else {
            result.with_ttl_ms(0).with_cache_scope(CacheScope::Private)
        })
    }};
}

/// Whether a request uses a protocol version with `initialize`.
fn is_legacy(context: &RequestContext<RoleServer>) -> bool {
    // Versions are dates, so string order is date order.
    context.protocol_version().is_none_or(|version| version.as_str() < ProtocolVersion::V_2026_07_28.as_str())
}

/// The minimum level of the lines that a client wants. MCP has no level below debug.
#[expect(deprecated, reason = "older clients set log levels")]
fn minimum_level(level: LoggingLevel) -> LogLevel {
    match log_level(level) {
        LogLevel::Debug => LogLevel::Trace,
        level => level,
    }
}

/// Only tool calls can become tasks.
fn unexpected_task() -> ErrorData {
    ErrorData::internal_error("only tool calls can become tasks", None)
}

/// Converts a tool error to a JSON-RPC error.
pub(super) fn rpc_error(error: &ToolError) -> ErrorData {
    let data = Some(json!({ (ERROR): error }));
    match error.code() {
        code if code.is_recoverable() => ErrorData::invalid_params(error.to_string(), data),
        _ => ErrorData::internal_error(error.to_string(), data),
    }
}

/// The JSON-RPC error for a tool that needs a missing client capability.
pub(super) fn missing_capability(error: &ToolError) -> Option<ErrorData> {
    let capability = error.context().get(CAPABILITY)?.as_str()?;
    let data = json!({ "requiredCapabilities": { capability: {} } });
    let code = rmcp::model::ErrorCode(MISSING_CAPABILITY);
    Some(ErrorData::new(code, error.to_string(), Some(data)))
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        self.shared.info.get().cloned().unwrap_or_else(|| self.shared.describe(true, true))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let schema = self.shared.listings.latest().schema(name)?;
        Some(Tool::new_with_raw(name.to_owned(), None, schema))
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let listing =
            self.shared.listings.current(&*self.shared.source).await.map_err(|error| rpc_error(&error))?;
        let all = listing.tools(is_legacy(&context));
        let open = self.open(&context).await?;
        let is_open = |tool: &&Tool| open.as_ref().is_none_or(|open| open.contains(&*tool.name));
        let tools: Vec<Tool> = all.iter().filter(is_open).cloned().collect();
        page_result!(self, ListToolsResult, &tools, request, context)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let name = request.name.into_owned();
        let listing =
            self.shared.listings.current(&*self.shared.source).await.map_err(|error| rpc_error(&error))?;
        let Some(spec) = listing.spec(&name) else {
            if let Some(error) = unlisted_tool(&name, self.shared.source.status()) {
                return Err(rpc_error(&error));
            }
            return Err(listing.unknown(&name, self.open(&context).await?.as_ref()));
        };
        let is_legacy = is_legacy(&context);
        let capabilities = context.client_capabilities();
        let plan = match self.plan(spec, capabilities.as_ref(), is_legacy) {
            Ok(plan) => plan,
            Err(missing) => {
                let open = self.open(&context).await?;
                let is_closed = open.as_ref().is_some_and(|open| !open.contains(&spec.name));
                return Err(if is_closed { listing.unknown(&name, open.as_ref()) } else { missing });
            }
        };
        let schema = spec.output_schema.clone();
        let round = RoundInput::new(request.request_state, request.input_responses)?;
        let operation = Operation::new(OperationKind::Call, name, request.arguments);
        // Boxed: the futures of rmcp are as large as that of the largest method.
        let running = Box::pin(self.run(operation, round, plan, capabilities.as_ref(), &context));
        match running.await? {
            Outcome::Done(Ok(output)) => Ok(outward::result(output, schema.as_deref(), is_legacy).into()),
            Outcome::Done(Err(error)) => match missing_capability(&error) {
                Some(missing) if !is_legacy => Err(missing),
                _ => Ok(outward::failure(&error, is_legacy).into()),
            },
            Outcome::InputRequired(required) => Ok(required.into()),
            Outcome::Task(task) => Ok(task.into()),
        }
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let task = self.shared.tasks.get(&request.task_id, &self.principal(&context)).await?;
        Ok(GetTaskResult::new(task))
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.shared.tasks.update(&request.task_id, &self.principal(&context), request.input_responses)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.shared.tasks.cancel(&request.task_id, &self.principal(&context))
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let specs = self.resource_specs(&context).await?;
        let fixed = specs.iter().filter(|spec| !outward::is_template(spec));
        let resources: Vec<_> = fixed.map(|spec| outward::resource(spec)).collect();
        page_result!(self, ListResourcesResult, &resources, request, context)
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let specs = self.resource_specs(&context).await?;
        let patterns = specs.iter().filter(|spec| outward::is_template(spec));
        let templates: Vec<_> = patterns.map(|spec| outward::template(spec)).collect();
        page_result!(self, ListResourceTemplatesResult, &templates, request, context)
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri;
        let specs = self.resource_specs(&context).await?;
        let spec = specs.iter().find(|spec| spec.uri_pattern.matches(&uri).is_some());
        let round = RoundInput::new(request.request_state, request.input_responses)?;
        let capabilities = context.client_capabilities();
        let operation = Operation::new(OperationKind::Read, uri.clone(), None);
        match self.run(operation, round, None, capabilities.as_ref(), &context).await? {
            Outcome::Done(Ok(output)) => {
                let mut result = outward::contents(&uri, &output, spec.map(|spec| &**spec));
                if !is_legacy(&context) {
                    result = result.with_ttl_ms(0).with_cache_scope(CacheScope::Private);
                }
                Ok(result.into())
            }
            Outcome::Done(Err(error)) if error.code() == Code::NotFound => {
                Err(ErrorData::resource_not_found(error.message().to_owned(), Some(json!({ "uri": uri }))))
            }
            Outcome::Done(Err(error)) => Err(rpc_error(&error)),
            Outcome::InputRequired(required) => Ok(required.into()),
            Outcome::Task(_) => Err(unexpected_task()),
        }
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let source = self.view(&context).unwrap_or_else(|| Arc::clone(&self.shared.source));
        let specs = in_time(source.prompts()).await.map_err(|error| rpc_error(&error))?;
        let prompts: Vec<_> = specs.iter().map(|spec| outward::prompt(spec)).collect();
        page_result!(self, ListPromptsResult, &prompts, request, context)
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let specs = in_time(self.shared.source.prompts()).await.map_err(|error| rpc_error(&error))?;
        let name = request.name;
        let summary = specs.iter().find(|spec| spec.name == name).map(|spec| spec.summary.clone());
        let round = RoundInput::new(request.request_state, request.input_responses)?;
        let operation = Operation::new(OperationKind::Render, name, request.arguments);
        let capabilities = context.client_capabilities();
        match self.run(operation, round, None, capabilities.as_ref(), &context).await? {
            Outcome::Done(Ok(output)) => {
                Ok(outward::messages(&output, summary.as_deref().unwrap_or_default()).into())
            }
            Outcome::Done(Err(error)) => Err(missing_capability(&error)
                .filter(|_| !is_legacy(&context))
                .unwrap_or_else(|| rpc_error(&error))),
            Outcome::InputRequired(required) => Ok(required.into()),
            Outcome::Task(_) => Err(unexpected_task()),
        }
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let Some(completer) = &self.shared.completer else {
            return Err(ErrorData::method_not_found::<rmcp::model::CompleteRequestMethod>());
        };
        let (of, is_resource) = match request.r#ref {
            Reference::Prompt(prompt) => (prompt.name, false),
            Reference::Resource(resource) => (resource.uri, true),
            _ => return Err(ErrorData::invalid_params("expected a prompt or a resource", None)),
        };
        let mut completion = Completion::new(of, is_resource, request.argument.name, request.argument.value);
        let context = request.context.unwrap_or_default();
        completion.known = context
            .argument_names()
            .filter_map(|name| Some((name.to_owned(), context.get_argument(name)?.clone())))
            .collect();
        let mut values = tokio::time::timeout(LIST_TIMEOUT, completer(completion))
            .await
            .map_err(|_| ErrorData::internal_error("the completion timed out", None))?;
        let total = u32::try_from(values.len()).ok();
        let has_more = values.len() > CompletionInfo::MAX_VALUES;
        values.truncate(CompletionInfo::MAX_VALUES);
        let info = CompletionInfo::with_pagination(values, total, has_more);
        Ok(CompleteResult::new(info.map_err(|error| ErrorData::internal_error(error, None))?))
    }

    #[expect(deprecated, reason = "older clients set log levels")]
    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if !is_legacy(&context) {
            return Err(ErrorData::method_not_found::<rmcp::model::SetLevelRequestMethod>());
        }
        *self.session.level.lock().unwrap_or_else(PoisonError::into_inner) = minimum_level(request.level);
        Ok(())
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let principal = self.principal(&context);
        self.session.subscriptions.add(&self.shared, principal, context.peer, request.uri).await
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.session.subscriptions.remove(&request.uri);
        Ok(())
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.shared.changes.add(context.peer);
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        let mut accepted = requested.clone();
        if let Some(uris) = &mut accepted.resource_subscriptions {
            uris.truncate(self.shared.limits.subscriptions);
        }
        Some(accepted)
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        super::subscriptions::listen(self, context).await
    }
}
