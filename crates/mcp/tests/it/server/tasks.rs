//! Calls that become tasks: when, whose they are, what they tell and ask, how they end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use toolpost_core::{
    Answer, BoxFuture, Call, Output, ParameterType, Question, Reply, Secret, TaskRecord, TaskStore, TaskUse,
    ToolError, ToolSource, ToolSpec, tool_fn,
};
use toolpost_mcp::server::{RunningServer, Server, ServerBuilder};
use toolpost_toolbox::Toolbox;

use super::support::{Answered, modern, post_with, request};

/// Counts what is dropped before its end.
#[derive(Clone, Default)]
pub(super) struct Dropped(pub(super) Arc<AtomicUsize>);

struct Guard(Dropped);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Tools of every use; what they count is counted outside.
pub(super) fn toolbox(dropped: &Dropped) -> Toolbox {
    let spec = |name: &str, task: TaskUse| {
        ToolSpec::new(name, "Take a while.").task(task).parameter("ms", ParameterType::Integer, "How long.")
    };
    let mut builder = Toolbox::builder().name("calc");
    for (name, task) in [
        ("when_slow", TaskUse::WhenSlow),
        ("at_once", TaskUse::AtOnce),
        ("only", TaskUse::Only),
        ("never", TaskUse::Never),
    ] {
        let dropped = dropped.clone();
        builder = builder.tool(tool_fn(spec(name, task), move |args, ctx| {
            let dropped = dropped.clone();
            async move {
                let guard = Guard(dropped);
                ctx.progress("half of it", 50.0);
                tokio::time::sleep(Duration::from_millis(args.decode("ms")?)).await;
                std::mem::forget(guard);
                Ok(Output::text("done"))
            }
        }));
    }
    let ask = ToolSpec::new("ask", "Ask twice.").task(TaskUse::AtOnce);
    let large = ToolSpec::new("large", "Much.").task(TaskUse::AtOnce);
    let fails = ToolSpec::new("fails", "Fail.").task(TaskUse::AtOnce);
    let samples = ToolSpec::new("roots", "Look where the client works.").task(TaskUse::AtOnce);
    builder
        .tool(tool_fn(ask, async |_args, ctx| {
            let schema = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
            let mut names = Vec::new();
            for _ in 0..2 {
                let question = Question::with_schema("Who?", schema.clone()).named("who");
                match ctx.ask(question).await? {
                    Answer::Given { value } => names.push(value["name"].as_str().unwrap().to_owned()),
                    Answer::Declined => names.push("nobody".to_owned()),
                }
            }
            Ok(Output::text(names.join(" and ")))
        }))
        .tool(tool_fn(large, async |_args, _ctx| Ok(Output::text("x".repeat(100_000)))))
        .tool(tool_fn(fails, async |_args, _ctx| Err(ToolError::not_found("the shelf is empty"))))
        .tool(tool_fn(samples, async |_args, ctx| Ok(Output::json(json!(ctx.roots().await?.len())))))
        .build()
        .unwrap()
}

pub(super) async fn serve_source(
    source: impl ToolSource + 'static,
    change: impl FnOnce(ServerBuilder) -> ServerBuilder,
) -> RunningServer {
    let server = change(Server::builder(Arc::new(source)).name("calc")).build().unwrap();
    server.http("127.0.0.1:0".parse().unwrap()).await.unwrap()
}

async fn serve(change: impl FnOnce(ServerBuilder) -> ServerBuilder) -> RunningServer {
    serve_source(toolbox(&Dropped::default()), change).await
}

pub(super) fn knows_tasks() -> Value {
    json!({ "elicitation": { "form": {} }, "extensions": { "io.modelcontextprotocol/tasks": {} } })
}

/// A client, with its token if it has one.
#[derive(Clone, Copy)]
pub(super) struct Client<'a>(pub(super) SocketAddr, pub(super) Option<&'a str>);

impl Client<'_> {
    async fn send_with(self, method: &str, params: Value, capabilities: Value) -> Answered {
        let authorization = self.1.map(|token| format!("Bearer {token}"));
        let more: Vec<_> = authorization.iter().map(|value| ("Authorization", value.as_str())).collect();
        post_with(self.0, &modern(1, method, params, capabilities), &more).await
    }

    pub(super) async fn send(self, method: &str, params: Value) -> Value {
        self.send_with(method, params, knows_tasks()).await.message()
    }

    pub(super) async fn call(self, tool: &str, arguments: Value) -> Value {
        self.send("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    /// Makes a call that becomes a task, and gives its name.
    pub(super) async fn begin(self, tool: &str, arguments: Value) -> String {
        let begun = self.call(tool, arguments).await;
        assert_eq!(begun["result"]["resultType"], "task", "{begun}");
        begun["result"]["taskId"].as_str().unwrap().to_owned()
    }

    pub(super) async fn get(self, id: &str) -> Value {
        self.send("tasks/get", json!({ "taskId": id })).await
    }

    /// Waits until a task has one of these states.
    pub(super) async fn until(self, id: &str, wanted: &[&str]) -> Value {
        for _ in 0..600 {
            let task = self.get(id).await["result"].take();
            if wanted.iter().any(|status| task["status"] == *status) {
                return task;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the task is never one of {wanted:?}: {}", self.get(id).await);
    }

    pub(super) async fn end(self, id: &str) -> Value {
        self.until(id, &["completed", "failed", "cancelled"]).await
    }
}

#[tokio::test]
async fn a_call_becomes_a_task_when_its_tool_or_the_time_says_so() {
    let running =
        serve(|builder| builder.limits(|limits| limits.task_after = Duration::from_millis(100))).await;
    let client = Client(running.address(), None);
    for (tool, ms, is_task) in [
        ("when_slow", 0, false),
        ("when_slow", 400, true),
        ("at_once", 0, true),
        ("only", 0, true),
        ("never", 300, false),
    ] {
        let answer = client.call(tool, json!({ "ms": ms })).await["result"].take();
        let done = if is_task {
            assert_eq!(answer["resultType"], "task", "{tool} {ms} {answer}");
            assert_eq!((&answer["ttlMs"], &answer["pollIntervalMs"]), (&json!(3_600_000), &json!(1_000)));
            client.end(answer["taskId"].as_str().unwrap()).await["result"].take()
        } else {
            answer
        };
        assert_eq!(done["content"][0]["text"], "done", "{tool} {ms} {done}");
    }
    let status: Value =
        serde_json::from_str(&request(running.address(), "GET", "/status", &[], "").await.body).unwrap();
    assert_eq!(status["tasks"], json!({ "running": 0, "stored": 3 }));
}

#[tokio::test]
async fn a_client_that_knows_no_tasks_gets_answers_or_is_told_what_it_lacks() {
    let running = serve(|builder| builder.limits(|limits| limits.task_after = Duration::ZERO)).await;
    let client = Client(running.address(), None);
    let call = |tool: &str| json!({ "name": tool, "arguments": { "ms": 0 } });
    for tool in ["when_slow", "at_once", "never"] {
        let answer = client.send_with("tools/call", call(tool), json!({})).await.message();
        assert_eq!(answer["result"]["content"][0]["text"], "done", "{tool} {answer}");
    }
    let mut refused = vec![client.send_with("tools/call", call("only"), json!({})).await.message()];
    for method in ["tasks/get", "tasks/cancel"] {
        let params = json!({ "taskId": "x" });
        refused.push(client.send_with(method, params, json!({})).await.message());
    }
    for answer in refused {
        assert_eq!(answer["error"]["code"], -32021, "{answer}");
        let needed = &answer["error"]["data"]["requiredCapabilities"]["extensions"];
        assert_eq!(needed, &json!({ "io.modelcontextprotocol/tasks": {} }));
    }
    let off = serve(|builder| builder.limits(|limits| limits.tasks = 0)).await;
    let client = Client(off.address(), None);
    assert_eq!(client.call("at_once", json!({ "ms": 0 })).await["result"]["content"][0]["text"], "done");
    assert_eq!(client.get("x").await["error"]["code"], -32601);
    let found = client.send("server/discover", json!({})).await;
    assert!(found["result"]["capabilities"]["extensions"].get("io.modelcontextprotocol/tasks").is_none());
}

#[tokio::test]
async fn how_a_call_ends_is_how_its_task_ends() {
    let running = serve(|builder| builder.limits(|limits| limits.task_bytes = 20_000)).await;
    let client = Client(running.address(), None);
    let failed = client.end(&client.begin("fails", json!({})).await).await;
    assert_eq!((&failed["status"], &failed["result"]["isError"]), (&json!("completed"), &json!(true)));
    let lacks = client.end(&client.begin("roots", json!({})).await).await;
    assert_eq!((&lacks["status"], &lacks["error"]["code"]), (&json!("failed"), &json!(-32021)), "{lacks}");
    let large = client.end(&client.begin("large", json!({})).await).await;
    assert_eq!(large["status"], "failed");
    assert_eq!(large["error"]["data"]["toolpost/error"]["code"], "LIMIT", "{large}");
    let told = client.end(&client.begin("at_once", json!({ "ms": 0 })).await).await;
    assert_eq!(told["status"], "completed", "what was too large has left its place: {told}");
}

#[tokio::test]
async fn a_running_task_says_how_far_it_is_and_is_stopped_at_once() {
    let dropped = Dropped::default();
    let running = serve_source(toolbox(&dropped), |builder| builder).await;
    let client = Client(running.address(), None);
    let id = client.begin("at_once", json!({ "ms": 60_000 })).await;
    for _ in 0..100 {
        if client.get(&id).await["result"]["statusMessage"] == "half of it" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(client.get(&id).await["result"]["statusMessage"], "half of it");
    let done = client.send("tasks/cancel", json!({ "taskId": id })).await;
    assert_eq!(done["result"]["resultType"], "complete", "{done}");
    assert_eq!(client.end(&id).await["status"], "cancelled");
    assert_eq!(dropped.0.load(Ordering::SeqCst), 1, "the call is still there");
    let again = client.send("tasks/cancel", json!({ "taskId": id })).await;
    assert_eq!(again["result"]["resultType"], "complete", "{again}");
}

#[tokio::test]
async fn a_task_is_its_owners_and_its_name_cannot_be_guessed() {
    let running = serve_source(toolbox(&Dropped::default()), |builder| {
        builder.bearer(Secret::new("ada")).bearer(Secret::new("eve"))
    })
    .await;
    let (ada, eve) = (Client(running.address(), Some("ada")), Client(running.address(), Some("eve")));
    let id = ada.begin("ask", json!({})).await;
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    ada.until(&id, &["input_required"]).await;
    let answers = json!({ "who": { "action": "accept", "content": { "name": "Eve" } } });
    for (method, params) in [
        ("tasks/get", json!({ "taskId": id })),
        ("tasks/cancel", json!({ "taskId": id })),
        ("tasks/update", json!({ "taskId": id, "inputResponses": answers })),
    ] {
        let refused = eve.send(method, params.clone()).await;
        let mut unknown = params;
        unknown["taskId"] = "0".repeat(32).into();
        let nothing = eve.send(method, unknown).await.to_string().replace(&"0".repeat(32), &id);
        assert_eq!(refused["error"]["code"], -32602, "{method} {refused}");
        assert_eq!(refused.to_string(), nothing, "a stranger sees that it exists");
    }
    assert_eq!(ada.get(&id).await["result"]["status"], "input_required");
}

#[tokio::test]
async fn a_question_waits_in_its_task_and_each_has_a_name_of_its_own() {
    let running = serve(|builder| builder).await;
    let client = Client(running.address(), None);
    let id = client.begin("ask", json!({})).await;
    let answer = async |key: &str, answer: Value| {
        client.send("tasks/update", json!({ "taskId": id, "inputResponses": { key: answer } })).await
    };
    let accept = |name: &str| json!({ "action": "accept", "content": { "name": name } });
    let asked = client.until(&id, &["input_required"]).await;
    assert_eq!(asked["inputRequests"]["who"]["params"]["message"], "Who?", "{asked}");
    for wrong in [json!(1), json!({ "action": "maybe" })] {
        assert_eq!(answer("who", wrong).await["error"]["code"], -32602);
    }
    assert_eq!(answer("other", accept("Eve")).await["result"]["resultType"], "complete");
    assert_eq!(answer("who", accept("Ada")).await["result"]["resultType"], "complete");
    let mut again = client.until(&id, &["input_required"]).await;
    while again["inputRequests"].get("who").is_some() {
        again = client.until(&id, &["input_required"]).await;
    }
    assert!(again["inputRequests"].get("who-2").is_some(), "{again}");
    // What was answered is not asked any more.
    answer("who", accept("Eve")).await;
    answer("who-2", json!({ "action": "decline" })).await;
    let done = client.end(&id).await;
    assert_eq!(done["result"]["content"][0]["text"], "Ada and nobody", "{done}");
}

#[tokio::test]
async fn tasks_are_few_and_do_not_live_for_ever() {
    let dropped = Dropped::default();
    let running = serve_source(toolbox(&dropped), |builder| {
        builder.limits(|limits| {
            limits.tasks = 1;
            limits.task_ttl = Duration::from_millis(500);
        })
    })
    .await;
    let client = Client(running.address(), None);
    let id = client.begin("at_once", json!({ "ms": 60_000 })).await;
    let call = client.call("at_once", json!({ "ms": 0 })).await;
    assert_eq!(call["result"]["content"][0]["text"], "done", "without a place a call is a call: {call}");
    let refused = client.call("only", json!({ "ms": 0 })).await;
    assert_eq!(refused["result"]["_meta"]["toolpost/error"]["code"], "OVERLOADED", "{refused}");
    let late = client.end(&id).await;
    assert_eq!(late["error"]["data"]["toolpost/error"]["code"], "TIMEOUT", "{late}");
    assert!(dropped.0.load(Ordering::SeqCst) >= 1);
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if client.get(&id).await["error"]["code"] == -32602 {
            break;
        }
    }
    assert_eq!(client.get(&id).await["error"]["code"], -32602, "its time is over");
    client.begin("only", json!({ "ms": 0 })).await;
}

fn breaks() -> Reply {
    panic!("it breaks")
}

/// A source whose call breaks.
struct Broken;

impl ToolSource for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(async { Ok(vec![Arc::new(ToolSpec::new("broken", "Break.").task(TaskUse::AtOnce))]) })
    }

    fn generation(&self) -> u64 {
        0
    }

    fn call(&self, _call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(async { breaks() })
    }
}

/// A store that cannot keep what has ended, or anything.
struct Full {
    refuses_all: bool,
}

impl TaskStore for Full {
    fn put(&self, task: TaskRecord) -> BoxFuture<'_, Result<(), ToolError>> {
        let refuses = self.refuses_all || task.body.get("end").is_some();
        Box::pin(async move { if refuses { Err(ToolError::limit("the disk is full")) } else { Ok(()) } })
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
async fn a_broken_call_and_a_broken_store_end_in_an_answer() {
    let running = serve_source(Broken, |builder| builder).await;
    let client = Client(running.address(), None);
    let broken = client.end(&client.begin("broken", json!({})).await).await;
    assert_eq!((&broken["status"], &broken["error"]["code"]), (&json!("failed"), &json!(-32603)), "{broken}");
    let stored = |refuses_all| {
        serve_source(toolbox(&Dropped::default()), move |builder| {
            builder.task_store(Arc::new(Full { refuses_all }))
        })
    };
    let full = stored(false).await;
    let client = Client(full.address(), None);
    let done = client.end(&client.begin("at_once", json!({ "ms": 0 })).await).await;
    assert_eq!(done["result"]["content"][0]["text"], "done", "the result is told, kept or not: {done}");
    let full = stored(true).await;
    let client = Client(full.address(), None);
    let call = client.call("at_once", json!({ "ms": 0 })).await;
    assert_eq!(call["result"]["content"][0]["text"], "done", "{call}");
    let refused = client.call("only", json!({ "ms": 0 })).await;
    assert_eq!(refused["result"]["_meta"]["toolpost/error"]["code"], "LIMIT", "{refused}");
}

fn listen(id: &str) -> Value {
    modern(7, "subscriptions/listen", json!({ "notifications": { "taskIds": [id] } }), knows_tasks())
}

#[tokio::test]
async fn who_listens_is_told_when_a_task_changes() {
    let running = serve(|builder| builder).await;
    let client = Client(running.address(), None);
    let id = client.begin("at_once", json!({ "ms": 500 })).await;
    let mut stream = TcpStream::connect(running.address()).await.unwrap();
    let body = listen(&id).to_string();
    let opening = format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: subscriptions/listen\r\nContent-Length: {}\r\n\r\n{body}",
        running.address(),
        body.len()
    );
    stream.write_all(opening.as_bytes()).await.unwrap();
    let mut heard = String::new();
    let mut buffer = [0; 4096];
    while !heard.contains("\"completed\"") {
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut buffer)).await;
        let count = read.expect("it is told in time").unwrap();
        assert!(count > 0, "{heard}");
        heard.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    let data = heard.lines().filter_map(|line| line.strip_prefix("data:"));
    let messages: Vec<Value> = data.filter_map(|data| serde_json::from_str(data.trim()).ok()).collect();
    let told: Vec<_> = messages.iter().filter(|told| told["method"] == "notifications/tasks").collect();
    let last = &told.last().unwrap()["params"];
    assert_eq!((&last["taskId"], &last["status"]), (&json!(id), &json!("completed")), "{heard}");
    assert_eq!(last["result"]["content"][0]["text"], "done");
    assert_eq!(last["_meta"]["io.modelcontextprotocol/subscriptionId"], 7);
    assert!(told.iter().any(|told| told["params"]["status"] == "working"), "{heard}");
}

#[tokio::test]
async fn tasks_are_there_on_streams_too() {
    let server = Server::builder(Arc::new(toolbox(&Dropped::default()))).build().unwrap();
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (input, output) = tokio::io::split(theirs);
    let serving = tokio::spawn(async move { server.serve_streams(input, output).await });
    let (read, mut write) = tokio::io::split(ours);
    let mut lines = BufReader::new(read).lines();
    let mut next = async || -> Value {
        let line = tokio::time::timeout(Duration::from_secs(10), lines.next_line()).await;
        serde_json::from_str(&line.unwrap().unwrap().unwrap()).unwrap()
    };
    let mut send = async |message: Value| write.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    send(modern(1, "server/discover", json!({}), knows_tasks())).await;
    let found = next().await;
    assert!(found["result"]["capabilities"]["extensions"].get("io.modelcontextprotocol/tasks").is_some());
    let call = json!({ "name": "at_once", "arguments": { "ms": 300 } });
    send(modern(2, "tools/call", call, knows_tasks())).await;
    let id = next().await["result"]["taskId"].as_str().unwrap().to_owned();
    send(listen(&id)).await;
    loop {
        let told = next().await;
        if told["method"] == "notifications/tasks" && told["params"]["status"] == "completed" {
            assert_eq!(told["params"]["taskId"], id);
            break;
        }
    }
    send(modern(3, "tasks/get", json!({ "taskId": id }), knows_tasks())).await;
    assert_eq!(next().await["result"]["status"], "completed");
    drop(write);
    drop(lines);
    serving.await.unwrap().unwrap();
}
