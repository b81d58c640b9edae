//! A server built with rmcp, independent of the tested code.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::*;
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The state that all connections of a server share.
#[derive(Default)]
pub(crate) struct Facts {
    /// The number of `slow` calls that were cancelled.
    pub(crate) cancelled: AtomicU64,
    /// The number of `slow` calls that started.
    pub(crate) started: AtomicU64,
    /// The number of calls of `count`.
    pub(crate) counted: AtomicU64,
    has_more: AtomicBool,
    changed: tokio::sync::Notify,
    tasks: Mutex<HashMap<String, (u64, Option<Value>)>>,
    pub(crate) cancelled_tasks: AtomicU64,
    pub(crate) headers: Mutex<Vec<String>>,
}

#[derive(Clone)]
pub(crate) struct Fixture {
    /// Whether the server supports only versions with `initialize`.
    pub(crate) is_legacy: bool,
    pub(crate) facts: Arc<Facts>,
}

fn parse<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn text(text: impl Into<String>) -> Result<CallToolResponse, ErrorData> {
    Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
}

impl Fixture {
    pub(crate) fn new(is_legacy: bool) -> Self {
        Self { is_legacy, facts: Arc::default() }
    }

    fn tools(&self) -> Value {
        let object = |properties: Value| json!({ "type": "object", "properties": properties });
        let mut tools = vec![
            json!({ "name": "add", "description": "Add two numbers.\nThat is all.",
                "inputSchema": { "type": "object", "properties": { "a": { "type": "integer" }, "b": { "type": "integer" } }, "required": ["a", "b"] },
                "outputSchema": { "type": "object", "properties": { "sum": { "type": "integer" } } },
                "annotations": { "readOnlyHint": true } }),
            json!({ "name": "fail", "inputSchema": object(json!({})) }),
            json!({ "name": "slow", "inputSchema": object(json!({ "ms": { "type": "integer" } })) }),
            json!({ "name": "ask", "inputSchema": object(json!({})) }),
            json!({ "name": "sample", "inputSchema": object(json!({})) }),
            json!({ "name": "log", "inputSchema": object(json!({})) }),
            json!({ "name": "task", "inputSchema": object(json!({ "polls": { "type": "integer" }, "asks": { "type": "boolean" } })) }),
            json!({ "name": "files/read.all", "inputSchema": object(json!({})) }),
            json!({ "name": "change", "inputSchema": object(json!({})) }),
            json!({ "name": "crash", "inputSchema": object(json!({})) }),
            json!({ "name": "crash_once", "inputSchema": object(json!({ "file": { "type": "string" } })),
                "annotations": { "idempotentHint": true } }),
            json!({ "name": "count", "inputSchema": object(json!({})) }),
            json!({ "name": "environment", "inputSchema": object(json!({})) }),
            json!({ "name": "meta", "inputSchema": object(json!({})) }),
            json!({ "name": "has_more", "inputSchema": object(json!({})) }),
        ];
        if self.facts.has_more.load(Ordering::SeqCst) {
            tools.push(json!({ "name": "more", "inputSchema": object(json!({})) }));
        }
        tools.into()
    }

    /// Asks the client: by an input round, or by a request to a legacy client. `Err` is the round.
    async fn ask(
        &self,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
        question: Value,
    ) -> Result<Value, Result<CallToolResponse, ErrorData>> {
        if let Some(answers) = &request.input_responses {
            assert_eq!(request.request_state.as_deref(), Some("sealed"));
            return Ok(answers["q"].clone());
        }
        if self.is_legacy {
            let answer = context.peer.send_request(parse(question)).await;
            let failed = |error: rmcp::ServiceError| ErrorData::internal_error(error.to_string(), None);
            return answer
                .map(|answer| serde_json::to_value(answer).unwrap())
                .map_err(|error| Err(failed(error)));
        }
        let round = json!({ "resultType": "input_required", "inputRequests": { "q": question }, "requestState": "sealed" });
        Err(Ok(parse::<InputRequiredResult>(round).into()))
    }

    async fn run(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = Value::Object(request.arguments.clone().unwrap_or_default());
        let number = |key: &str| arguments[key].as_i64().unwrap_or_default();
        match &*request.name {
            "add" => {
                let sum = number("a") + number("b");
                Ok(CallToolResult::structured(json!({ "sum": sum })).into())
            }
            "fail" => Ok(CallToolResult::error(vec![ContentBlock::text("no such city")]).into()),
            "slow" => {
                self.facts.started.fetch_add(1, Ordering::SeqCst);
                let token = context.meta.get_progress_token();
                for step in 0..4 {
                    if let Some(token) = token.clone() {
                        let progress = ProgressNotificationParam::new(token, f64::from(step))
                            .with_total(4.0)
                            .with_message(format!("step {step}"));
                        let _ = context.peer.notify_progress(progress).await;
                    }
                    tokio::select! {
                        () = tokio::time::sleep(Duration::from_millis(number("ms") as u64 / 4)) => {}
                        () = context.ct.cancelled() => {
                            self.facts.cancelled.fetch_add(1, Ordering::SeqCst);
                            return text("cancelled");
                        }
                    }
                }
                text("done")
            }
            "ask" => {
                let params = json!({ "mode": "form", "message": "Which city?",
                    "requestedSchema": { "type": "object", "properties": {
                        "city": { "type": "string" }, "days": { "type": "integer", "default": 3 } }, "required": ["city"] } });
                let question = json!({ "method": "elicitation/create", "params": params });
                match self.ask(&request, &context, question).await {
                    Ok(answer) => text(answer.to_string()),
                    Err(round) => round,
                }
            }
            "sample" => {
                let params = json!({ "messages": [{ "role": "user", "content": { "type": "text", "text": "Say hi." } }],
                    "systemPrompt": "Be brief.", "maxTokens": 7 });
                let question = json!({ "method": "sampling/createMessage", "params": params });
                match self.ask(&request, &context, question).await {
                    Ok(answer) => text(answer["content"]["text"].as_str().unwrap_or("nothing")),
                    Err(round) => round,
                }
            }
            "log" => {
                let line = LoggingMessageNotificationParam::new(LoggingLevel::Warning, json!("careful"))
                    .with_logger("fixture");
                let _ = context.peer.notify_logging_message(line).await;
                if self.is_legacy {
                    // Over HTTP the line is in another stream than the result. A ping follows it in that stream.
                    let _ = context.peer.send_request(parse(json!({ "method": "ping" }))).await;
                }
                text("logged")
            }
            "task" => {
                let id = format!("task-{}", self.facts.counted.fetch_add(1, Ordering::SeqCst));
                let asks = arguments["asks"] == true;
                self.facts
                    .tasks
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(id.clone(), (number("polls") as u64, (!asks).then_some(Value::Null)));
                let task = Task::new(id, TaskStatus::Working, "2026-11-22T00:00:00Z", "2026-11-22T00:00:00Z")
                    .with_poll_interval_ms(20);
                Ok(CreateTaskResult::new(task).into())
            }
            "files/read.all" => Ok(parse::<CallToolResult>(json!({ "content": [
                { "type": "text", "text": "a" },
                { "type": "image", "data": "AA==", "mimeType": "image/png" },
                { "type": "resource_link", "uri": "test://static", "name": "static" } ] }))
            .into()),
            "change" => {
                self.facts.has_more.fetch_xor(true, Ordering::SeqCst);
                self.facts.changed.notify_waiters();
                if self.is_legacy {
                    let _ = context.peer.notify_tool_list_changed().await;
                }
                text("changed")
            }
            "crash" => std::process::exit(3),
            "crash_once" => {
                let file = arguments["file"].as_str().unwrap_or_default().to_owned();
                if std::fs::File::create_new(&file).is_ok() {
                    std::process::exit(3);
                }
                text("survived")
            }
            "count" => text(self.facts.counted.fetch_add(1, Ordering::SeqCst).to_string()),
            "environment" => {
                let mut names: Vec<String> =
                    std::env::vars().map(|(name, value)| format!("{name}={value}")).collect();
                names.sort();
                text(names.join("\n"))
            }
            "meta" => text(serde_json::to_string(&context.meta).unwrap()),
            "has_more" => text(self.facts.has_more.load(Ordering::SeqCst).to_string()),
            name => Err(ErrorData::invalid_params(format!("unknown tool {name}"), None)),
        }
    }
}

impl ServerHandler for Fixture {
    fn get_info(&self) -> ServerConfig {
        let mut info = ServerConfig::default();
        info.instructions = Some("Use it well.".to_owned());
        info.capabilities =
            parse(json!({ "tools": { "listChanged": true }, "resources": {}, "prompts": {}, "logging": {},
            "extensions": { "io.modelcontextprotocol/tasks": {} } }));
        info
    }

    async fn discover(&self, _: RequestContext<RoleServer>) -> Result<DiscoverResult, ErrorData> {
        if self.is_legacy {
            return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "server/discover", None));
        }
        Ok(DiscoverResult::from_server_info(vec![ProtocolVersion::V_2026_07_28], self.get_info()))
    }

    async fn set_level(
        &self,
        _: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn list_tools(
        &self,
        page: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = self.tools();
        let tools = tools.as_array().unwrap();
        let half = tools.len() / 2;
        let (items, next) = match page.and_then(|page| page.cursor) {
            None => (&tools[..half], Some("second")),
            Some(_) => (&tools[half..], None),
        };
        Ok(parse(json!({ "tools": items, "nextCursor": next })))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.run(request, context).await
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        loop {
            tokio::select! {
                () = self.facts.changed.notified() => {
                    let change = ServerNotification::ToolListChangedNotification(ToolListChangedNotification::default());
                    let _ = context.sink().send(change).await;
                }
                () = context.cancelled() => return Ok(()),
            }
        }
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let mut tasks = self.facts.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, answer) =
            tasks.get_mut(&request.task_id).ok_or_else(|| ErrorData::invalid_params("no task", None))?;
        let mut task =
            Task::new(request.task_id, TaskStatus::Working, "2026-11-22T00:00:00Z", "2026-11-22T00:00:00Z")
                .with_poll_interval_ms(20);
        let payload = if *left > 0 {
            *left -= 1;
            task = task.with_status_message(format!("{left} to go"));
            TaskPayload::Working
        } else if let Some(answer) = answer {
            let result = json!({ "content": [{ "type": "text", "text": format!("finished {answer}") }] });
            TaskPayload::Completed { result: parse(result) }
        } else {
            let question = json!({ "method": "elicitation/create", "params": { "mode": "form", "message": "Continue?",
                "requestedSchema": { "type": "object", "properties": { "yes": { "type": "boolean" } } } } });
            TaskPayload::InputRequired { input_requests: parse(json!({ "go": question })) }
        };
        Ok(GetTaskResult::new(DetailedTask::new(task, payload)))
    }

    async fn update_task(
        &self,
        update: UpdateTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let mut tasks = self.facts.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, answer)) = tasks.get_mut(&update.task_id) {
            *answer = Some(json!(update.input_responses));
        }
        Ok(())
    }

    async fn cancel_task(&self, _: CancelTaskParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.facts.cancelled_tasks.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(parse(
            json!({ "resources": [{ "uri": "test://static", "name": "static", "description": "A text.", "mimeType": "text/plain" }] }),
        ))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(parse(json!({ "resourceTemplates": [{ "uriTemplate": "test://item/{id}", "name": "item" }] })))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        match request.uri.as_str() {
            "test://static" => Ok(parse::<ReadResourceResult>(json!({ "contents": [
                { "uri": "test://static", "mimeType": "text/plain", "text": "a text" } ] }))
            .into()),
            uri => Err(ErrorData::resource_not_found(format!("no {uri}"), None)),
        }
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(parse(json!({ "prompts": [{ "name": "greet", "description": "Greet.", "arguments": [
            { "name": "who", "required": true }, { "name": "how" } ] }] })))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let who = request.arguments.as_ref().and_then(|arguments| arguments.get("who")).cloned();
        Ok(parse::<GetPromptResult>(json!({ "messages": [
            { "role": "user", "content": { "type": "text", "text": format!("Greet {}.", who.unwrap_or_default()) } } ] })).into())
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS)
    }
}
