//! Calls that become tasks: conditions, ownership, status, questions and ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{
    Answer, BoxFuture, Call, Output, ParameterType, Question, Reply, Secret, TaskRecord, TaskStore, TaskUse,
    ToolError, ToolSource, ToolSpec, tool_fn,
};
use toolpost_mcp::server::{RunningServer, Server, ServerBuilder};
use toolpost_testkit::eventually;
use toolpost_toolbox::Toolbox;

use super::support::{
    Conversation, EventStream, Response, error_code, modern, post_with, serve_source, status, text,
};

/// The number of calls that were dropped before their end.
type Dropped = Arc<AtomicUsize>;

struct CountOnDrop(Dropped);

impl Drop for CountOnDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Tools with every task use.
fn toolbox(dropped: &Dropped) -> Toolbox {
    let mut builder = Toolbox::builder().name("calc");
    for (name, task) in [
        ("when_slow", TaskUse::WhenSlow),
        ("at_once", TaskUse::AtOnce),
        ("only", TaskUse::Only),
        ("never", TaskUse::Never),
    ] {
        let dropped = Arc::clone(dropped);
        let spec = ToolSpec::new(name, "Take a while.").task(task);
        let spec = spec.parameter("ms", ParameterType::Integer, "How long.");
        builder = builder.tool(tool_fn(spec, move |args, ctx| {
            let guard = CountOnDrop(Arc::clone(&dropped));
            async move {
                ctx.progress("half of it", 50.0);
                tokio::time::sleep(Duration::from_millis(args.decode("ms")?)).await;
                std::mem::forget(guard);
                Ok(Output::text("done"))
            }
        }));
    }
    let spec = |name: &str| ToolSpec::new(name, "Run as a task.").task(TaskUse::AtOnce);
    builder
        .tool(tool_fn(spec("ask"), async |_args, ctx| {
            let schema = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
            let mut names = Vec::new();
            for _ in 0..2 {
                let question = Question::with_schema("Who?", schema.clone()).named("who");
                match ctx.ask(question).await? {
                    Answer::Given { value } => names.push(value["name"].as_str().unwrap().to_owned()),
                    Answer::Declined => names.push("declined".to_owned()),
                }
            }
            Ok(Output::text(names.join(" and ")))
        }))
        .tool(tool_fn(spec("large"), async |_args, _ctx| Ok(Output::text("x".repeat(100_000)))))
        .tool(tool_fn(spec("fails"), async |_args, _ctx| Err(ToolError::not_found("the shelf is empty"))))
        .tool(tool_fn(spec("roots"), async |_args, ctx| Ok(Output::json(json!(ctx.roots().await?.len())))))
        .build()
        .unwrap()
}

async fn serve(change: impl FnOnce(ServerBuilder) -> ServerBuilder) -> RunningServer {
    serve_source(toolbox(&Dropped::default()), change).await
}

fn capabilities() -> Value {
    json!({ "elicitation": { "form": {} }, "extensions": { "io.modelcontextprotocol/tasks": {} } })
}

/// A client, with its token if it has one.
#[derive(Clone, Copy)]
pub(super) struct Client<'a>(pub(super) SocketAddr, pub(super) Option<&'a str>);

impl Client<'_> {
    async fn send_with(self, method: &str, params: Value, capabilities: Value) -> Response {
        let authorization = self.1.map(|token| format!("Bearer {token}"));
        let headers: Vec<_> = authorization.iter().map(|value| ("Authorization", value.as_str())).collect();
        post_with(self.0, &modern(1, method, params, capabilities), &headers).await
    }

    async fn send(self, method: &str, params: Value) -> Value {
        self.send_with(method, params, capabilities()).await.message()
    }

    async fn call(self, tool: &str, arguments: Value) -> Value {
        self.send("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    /// Makes a call that becomes a task, and returns the task id.
    pub(super) async fn begin(self, tool: &str, arguments: Value) -> String {
        let begun = self.call(tool, arguments).await;
        assert_eq!(begun["result"]["resultType"], "task", "{begun}");
        begun["result"]["taskId"].as_str().unwrap().to_owned()
    }

    pub(super) async fn get(self, id: &str) -> Value {
        self.send("tasks/get", json!({ "taskId": id })).await
    }

    /// Polls a task until a condition holds.
    async fn until(self, id: &str, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let mut task = Value::Null;
        eventually(what, async || {
            task = self.get(id).await["result"].take();
            condition(&task)
        })
        .await;
        task
    }

    async fn until_asked(self, id: &str) -> Value {
        self.until(id, "the task asks", |task| task["status"] == "input_required").await
    }

    pub(super) async fn end(self, id: &str) -> Value {
        let ends = ["completed", "failed", "cancelled"];
        self.until(id, "the task ends", |task| ends.iter().any(|end| task["status"] == *end)).await
    }
}

#[tokio::test]
async fn a_call_becomes_a_task_by_its_tool_or_its_duration() {
    let after = Duration::from_millis(100);
    let running = serve(|builder| builder.limits(|limits| limits.task_after = after)).await;
    let client = Client(running.address(), None);
    for (tool, ms, is_task) in [
        ("when_slow", 0, false),
        ("when_slow", 400, true),
        ("at_once", 0, true),
        ("only", 0, true),
        ("never", 300, false),
    ] {
        let mut answer = client.call(tool, json!({ "ms": ms })).await;
        if is_task {
            let task = &answer["result"];
            assert_eq!(task["resultType"], "task", "{tool} {ms} {task}");
            assert_eq!((&task["ttlMs"], &task["pollIntervalMs"]), (&json!(3_600_000), &json!(1_000)));
            answer = client.end(task["taskId"].as_str().unwrap()).await;
        }
        assert_eq!(text(&answer), "done", "{tool} {ms} {answer}");
    }
    assert_eq!(status(running.address()).await["tasks"], json!({ "running": 0, "stored": 3 }));
}

#[tokio::test]
async fn a_client_without_task_support_gets_results_or_the_missing_capability() {
    let running = serve(|builder| builder.limits(|limits| limits.task_after = Duration::ZERO)).await;
    let client = Client(running.address(), None);
    let send =
        async |method: &str, params: Value| client.send_with(method, params, json!({})).await.message();
    let call = |tool: &str| json!({ "name": tool, "arguments": { "ms": 0 } });
    for tool in ["when_slow", "at_once", "never"] {
        assert_eq!(text(&send("tools/call", call(tool)).await), "done", "{tool}");
    }
    for (method, params) in [
        ("tools/call", call("only")),
        ("tasks/get", json!({ "taskId": "x" })),
        ("tasks/cancel", json!({ "taskId": "x" })),
    ] {
        let rejected = send(method, params).await;
        assert_eq!(rejected["error"]["code"], -32021, "{rejected}");
        let needed = &rejected["error"]["data"]["requiredCapabilities"]["extensions"];
        assert_eq!(needed, &json!({ "io.modelcontextprotocol/tasks": {} }));
    }
    let off = serve(|builder| builder.limits(|limits| limits.tasks = 0)).await;
    let client = Client(off.address(), None);
    assert_eq!(text(&client.call("at_once", json!({ "ms": 0 })).await), "done");
    assert_eq!(client.get("x").await["error"]["code"], -32601);
    let found = client.send("server/discover", json!({})).await;
    assert!(found["result"]["capabilities"]["extensions"].get("io.modelcontextprotocol/tasks").is_none());
}

#[tokio::test]
async fn a_task_ends_as_its_call_ends() {
    let running = serve(|builder| builder.limits(|limits| limits.task_bytes = 20_000)).await;
    let client = Client(running.address(), None);
    let end = async |tool: &str| {
        let arguments = if tool == "at_once" { json!({ "ms": 0 }) } else { json!({}) };
        client.end(&client.begin(tool, arguments).await).await
    };
    let failed = end("fails").await;
    assert_eq!((&failed["status"], &failed["result"]["isError"]), (&json!("completed"), &json!(true)));
    let lacks = end("roots").await;
    assert_eq!((&lacks["status"], &lacks["error"]["code"]), (&json!("failed"), &json!(-32021)), "{lacks}");
    let large = end("large").await;
    assert_eq!(large["status"], "failed");
    assert_eq!(large["error"]["data"]["toolpost/error"]["code"], "LIMIT", "{large}");
    let next = end("at_once").await;
    assert_eq!(next["status"], "completed", "the oversized result takes no space: {next}");
}

#[tokio::test]
async fn a_running_task_reports_progress_and_can_be_cancelled() {
    let dropped = Dropped::default();
    let running = serve_source(toolbox(&dropped), |builder| builder).await;
    let client = Client(running.address(), None);
    let id = client.begin("at_once", json!({ "ms": 60_000 })).await;
    client.until(&id, "the task reports progress", |task| task["statusMessage"] == "half of it").await;
    for _ in 0..2 {
        let cancelled = client.send("tasks/cancel", json!({ "taskId": id })).await;
        assert_eq!(cancelled["result"]["resultType"], "complete", "{cancelled}");
        assert_eq!(client.end(&id).await["status"], "cancelled");
    }
    assert_eq!(dropped.load(Ordering::SeqCst), 1, "the call still runs");
}

#[tokio::test]
async fn a_task_belongs_to_its_owner_and_its_id_is_random() {
    let running = serve(|builder| builder.bearer(Secret::new("ada")).bearer(Secret::new("eve"))).await;
    let (ada, eve) = (Client(running.address(), Some("ada")), Client(running.address(), Some("eve")));
    let id = ada.begin("ask", json!({})).await;
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    ada.until_asked(&id).await;
    let answers = json!({ "who": { "action": "accept", "content": { "name": "Eve" } } });
    for (method, params) in [
        ("tasks/get", json!({ "taskId": id })),
        ("tasks/cancel", json!({ "taskId": id })),
        ("tasks/update", json!({ "taskId": id, "inputResponses": answers })),
    ] {
        let rejected = eve.send(method, params.clone()).await;
        let mut unknown = params;
        unknown["taskId"] = "0".repeat(32).into();
        let expected = eve.send(method, unknown).await.to_string().replace(&"0".repeat(32), &id);
        assert_eq!(rejected["error"]["code"], -32602, "{method} {rejected}");
        assert_eq!(rejected.to_string(), expected, "the error reveals that the task exists");
    }
    assert_eq!(ada.get(&id).await["result"]["status"], "input_required");
}

#[tokio::test]
async fn each_question_of_a_task_has_its_own_key() {
    let running = serve(|builder| builder).await;
    let client = Client(running.address(), None);
    let id = client.begin("ask", json!({})).await;
    let answer = async |key: &str, answer: Value| {
        client.send("tasks/update", json!({ "taskId": id, "inputResponses": { key: answer } })).await
    };
    let accept = |name: &str| json!({ "action": "accept", "content": { "name": name } });
    let asked = client.until_asked(&id).await;
    assert_eq!(asked["inputRequests"]["who"]["params"]["message"], "Who?", "{asked}");
    for malformed in [json!(1), json!({ "action": "maybe" })] {
        assert_eq!(answer("who", malformed).await["error"]["code"], -32602);
    }
    assert_eq!(answer("other", accept("Eve")).await["result"]["resultType"], "complete");
    assert_eq!(answer("who", accept("Ada")).await["result"]["resultType"], "complete");
    let is_second = |task: &Value| task["inputRequests"].get("who-2").is_some();
    let second = client.until(&id, "the second question", is_second).await;
    assert_eq!(second["inputRequests"].get("who"), None);
    // An answered question takes no further answer.
    answer("who", accept("Eve")).await;
    answer("who-2", json!({ "action": "decline" })).await;
    let done = client.end(&id).await;
    assert_eq!(done["result"]["content"][0]["text"], "Ada and declined", "{done}");
}

#[tokio::test]
async fn tasks_are_bounded_in_number_and_time() {
    let dropped = Dropped::default();
    let running = serve_source(toolbox(&dropped), |builder| {
        builder.limits(|limits| (limits.tasks, limits.task_ttl) = (1, Duration::from_millis(500)))
    })
    .await;
    let client = Client(running.address(), None);
    let id = client.begin("at_once", json!({ "ms": 60_000 })).await;
    assert_eq!(text(&client.call("at_once", json!({ "ms": 0 })).await), "done", "the call stays a request");
    assert_eq!(error_code(&client.call("only", json!({ "ms": 0 })).await), "OVERLOADED");
    let expired = client.end(&id).await;
    assert_eq!(expired["error"]["data"]["toolpost/error"]["code"], "TIMEOUT", "{expired}");
    assert!(dropped.load(Ordering::SeqCst) >= 1);
    eventually("the task is removed", async || client.get(&id).await["error"]["code"] == -32602).await;
    client.begin("only", json!({ "ms": 0 })).await;
}

fn panics() -> Reply {
    panic!("a bug")
}

/// A source whose call panics.
struct Panicking;

impl ToolSource for Panicking {
    fn name(&self) -> &'static str {
        "panicking"
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(async { Ok(vec![Arc::new(ToolSpec::new("panic", "Panic.").task(TaskUse::AtOnce))]) })
    }

    fn generation(&self) -> u64 {
        0
    }

    fn call(&self, _call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(async { panics() })
    }
}

/// A store that rejects results, or everything.
struct Full {
    rejects_all: bool,
}

impl TaskStore for Full {
    fn put(&self, task: TaskRecord) -> BoxFuture<'_, Result<(), ToolError>> {
        let rejects = self.rejects_all || task.body.get("end").is_some();
        Box::pin(async move { if rejects { Err(ToolError::limit("the disk is full")) } else { Ok(()) } })
    }

    fn load<'a>(&'a self, _id: &'a str) -> BoxFuture<'a, Result<Option<TaskRecord>, ToolError>> {
        Box::pin(async { Ok(None) })
    }

    fn forget<'a>(&'a self, _ids: &'a [String]) -> BoxFuture<'a, Result<(), ToolError>> {
        Box::pin(async { Ok(()) })
    }

    fn all(&self) -> BoxFuture<'_, Result<Vec<TaskRecord>, ToolError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

#[tokio::test]
async fn a_panicking_call_and_a_full_store_still_give_a_result() {
    let running = serve_source(Panicking, |builder| builder).await;
    let client = Client(running.address(), None);
    let failed = client.end(&client.begin("panic", json!({})).await).await;
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!(-32603)), "{failed}");
    for rejects_all in [false, true] {
        let full = serve(|builder| builder.task_store(Arc::new(Full { rejects_all }))).await;
        let client = Client(full.address(), None);
        if rejects_all {
            assert_eq!(text(&client.call("at_once", json!({ "ms": 0 })).await), "done");
            assert_eq!(error_code(&client.call("only", json!({ "ms": 0 })).await), "LIMIT");
        } else {
            let done = client.end(&client.begin("at_once", json!({ "ms": 0 })).await).await;
            assert_eq!(done["result"]["content"][0]["text"], "done", "{done}");
        }
    }
}

fn listen(id: &str) -> Value {
    modern(7, "subscriptions/listen", json!({ "notifications": { "taskIds": [id] } }), capabilities())
}

#[tokio::test]
async fn a_subscriber_learns_of_task_changes() {
    let running = serve(|builder| builder).await;
    let client = Client(running.address(), None);
    let id = client.begin("at_once", json!({ "ms": 500 })).await;
    let mut events = EventStream::modern(running.address(), &listen(&id)).await;
    let received = events.wait_for("\"completed\"").await;
    let data = received.lines().filter_map(|line| line.strip_prefix("data:"));
    let messages: Vec<Value> = data.filter_map(|data| serde_json::from_str(data.trim()).ok()).collect();
    let last = &messages.last().unwrap();
    assert_eq!(last["method"], "notifications/tasks", "{received}");
    let task = &last["params"];
    assert_eq!((&task["taskId"], &task["status"]), (&json!(id), &json!("completed")), "{received}");
    assert_eq!(task["result"]["content"][0]["text"], "done");
    assert_eq!(task["_meta"]["io.modelcontextprotocol/subscriptionId"], 7);
}

#[tokio::test]
async fn tasks_work_on_streams() {
    let server = Server::builder(Arc::new(toolbox(&Dropped::default()))).build().unwrap();
    let mut client = Conversation::open(&server);
    client.send(modern(1, "server/discover", json!({}), capabilities())).await;
    let found = client.next().await;
    assert!(found["result"]["capabilities"]["extensions"].get("io.modelcontextprotocol/tasks").is_some());
    let call = json!({ "name": "at_once", "arguments": { "ms": 300 } });
    client.send(modern(2, "tools/call", call, capabilities())).await;
    let id = client.next().await["result"]["taskId"].as_str().unwrap().to_owned();
    client.send(listen(&id)).await;
    let mut statuses = Vec::new();
    while statuses.last() != Some(&json!("completed")) {
        let message = client.next().await;
        if message["method"] == "notifications/tasks" {
            assert_eq!(message["params"]["taskId"], id);
            statuses.push(message["params"]["status"].clone());
        }
    }
    assert_eq!(statuses[0], "working");
    client.send(modern(3, "tasks/get", json!({ "taskId": id }), capabilities())).await;
    assert_eq!(client.next().await["result"]["status"], "completed");
    client.close().await;
}
