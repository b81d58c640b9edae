//! Hostile and broken server programs. They are Python scripts, since rmcp sends valid messages only.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use toolpost_core::{Code, ToolError, ToolSource as _};
use toolpost_mcp::client::{Client, ClientBuilder, Endpoint};
use toolpost_sandbox::Level;

use super::support::{call, call_text};

/// The common part of the scripts. `BEGIN`, `DISCOVER`, `LIST` and `CALL` are replaced.
const SCRIPT: &str = r#"
import sys, json, time, os
def send(value):
    line(json.dumps(value))
def line(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
def answer(result):
    send({"jsonrpc": "2.0", "id": i, "result": result})
def tool(name, **more):
    return {"name": name, "inputSchema": {"type": "object"}, **more}
BEGIN
for text in sys.stdin:
    message = json.loads(text)
    method, i, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method == "server/discover":
        DISCOVER
    elif method == "initialize":
        answer({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "h", "version": "1"}})
    elif method == "tools/list":
        LIST
    elif method == "tools/call":
        if params["name"] == "ok":
            answer({"content": [{"type": "text", "text": "ok"}]})
            continue
        CALL
"#;
const LEGACY: &str = r#"send({"jsonrpc": "2.0", "id": i, "error": {"code": -32601, "message": "no"}})"#;
const MODERN: &str = r#"answer({"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "private"})"#;
const TWO: &str = r#"answer({"tools": [tool("ok"), tool("bad")]})"#;

fn script(begin: &str, discover: &str, list: &str, call: &str) -> String {
    let indented = |text: &str| text.replace('\n', "\n        ");
    SCRIPT
        .replace("BEGIN", begin)
        .replace("DISCOVER", &indented(discover))
        .replace("LIST", &indented(list))
        .replace("CALL", &indented(call))
}

fn hostile(list: &str, call: &str) -> Endpoint {
    Endpoint::program(["python3".to_owned(), "-c".to_owned(), script("", LEGACY, list, call)])
}

async fn connect(builder: ClientBuilder) -> Option<Arc<Client>> {
    match builder.name("bad").connect().await {
        Ok(client) => Some(client),
        Err(error) if error.message().contains("python3") => {
            println!("SKIP hostile servers: python3 is not installed");
            None
        }
        Err(error) => panic!("{error:#?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_lists_are_truncated() {
    for (list, tools, problem) in [
        (
            r#"n = int(params.get("cursor") or 0); answer({"tools": [tool(f"t{n}")], "nextCursor": str(n + 1)})"#,
            100,
            "after 100 pages",
        ),
        (r#"answer({"tools": [tool("same")], "nextCursor": "x"})"#, 1, "duplicate name `same`"),
        (r#"answer({"tools": [tool(f"t{n}") for n in range(5000)]})"#, 2_000, "after 2000 items"),
    ] {
        let Some(client) = connect(Client::builder(hostile(list, "pass"))).await else { return };
        assert_eq!(client.list().await.unwrap().len(), tools, "{list}");
        assert!(client.problems().iter().any(|found| found.contains(problem)), "{:?}", client.problems());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_tool_does_not_disable_the_others() {
    let list = r#"
deep = {}
for _ in range(70): deep = {"not": deep}
answer({"tools": [
    tool("ok"), tool(""), tool("ok"), {"name": 5}, {"name": "no_schema"},
    {"name": "text", "inputSchema": {"type": "string"}},
    {"name": "deep", "inputSchema": deep},
    {"name": "large", "inputSchema": {"type": "object", "description": "x" * 300000}},
    {"name": "wrong", "inputSchema": {"type": "object", "properties": {"a": {"type": "nonsense"}}}},
    {"name": "far", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "http://192.0.2.1/a.json"}}}},
    tool("last", description="x" * 100000)]})"#;
    let endpoint = hostile(list.trim(), r#"answer({"content": []})"#);
    let Some(client) = connect(Client::builder(endpoint)).await else { return };
    let tools = client.list().await.unwrap();
    let names: Vec<_> = tools.iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, ["ok", "t_5_ef2d127d", "no_schema", "wrong", "far", "last"]);
    assert!(tools[5].description.len() < 20_000);
    let problems = client.problems().join("\n");
    for expected in [
        "`deep`",
        "`large`",
        "`text`",
        "more than 64 deep",
        "limit of 262144",
        "the tool `wrong`: ignored invalid keywords of its input schema: `/properties/a/type`",
    ] {
        assert!(problems.contains(expected), "{expected} in {problems}");
    }
    call(&client, "wrong", json!({ "a": 1 })).await.unwrap();
    call(&client, "far", json!({ "a": 1 })).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_response_fails_only_its_call() {
    for (bad, code, text) in [
        (r#"answer({"content": [{"type": "text", "text": "x" * 17000000}]})"#, Code::Limit, "too long"),
        (
            r#"line('{"jsonrpc":"2.0","id":%d,"result":%s%s}' % (i, "[" * 100000, "]" * 100000))"#,
            Code::Dependency,
            "nested too deeply",
        ),
        (
            r#"line('{"jsonrpc":"2.0","id":%d,"result":{"x":[%s]}}' % (i, ",".join("1" * 600000)))"#,
            Code::Dependency,
            "more than 500000 values",
        ),
        ("answer(None)", Code::Dependency, "returned null instead of a result"),
        (r#"answer({"resultType": "task"})"#, Code::Dependency, "invalid task"),
        (
            r#"answer({"resultType": "input_required", "inputRequests": 5})"#,
            Code::Dependency,
            "invalid request for input",
        ),
        (
            r#"send({"jsonrpc": "2.0", "id": i, "error": {"code": -32000, "message": "x" * 100000}})"#,
            Code::Dependency,
            "xxx",
        ),
        (
            r#"send({"jsonrpc": "2.0", "id": i, "error": {"code": -32602, "message": "bad"}})"#,
            Code::InvalidInput,
            "bad",
        ),
    ] {
        let Some(client) = connect(Client::builder(hostile(TWO, bad))).await else { return };
        let error = call(&client, "bad", json!({})).await.unwrap_err();
        assert_eq!(error.code(), code, "{bad}: {error}");
        assert!(error.message().contains(text) && error.message().len() < 10_000, "{bad}: {error}");
        assert_eq!(call_text(&client, "ok", json!({})).await, "ok", "{bad}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn noise_around_a_response_is_ignored() {
    let noise = r#"
for _ in range(500): line("noise")
line(""); line("[]"); line("null"); line('{"id":'); line("\x1b[31m")
for n in range(2000):
    send({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": n + 100000, "progress": n}})
    send({"jsonrpc": "2.0", "id": 1000000 + n, "result": {}})
    send({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": n}})
    send({"jsonrpc": "2.0", "method": "notifications/unknown", "params": {}})
send({"jsonrpc": "2.0", "id": 7, "method": "unknown/method", "params": {}})
answer({"content": [{"type": "text", "text": "through"}]})"#;
    let Some(client) = connect(Client::builder(hostile(TWO, noise.trim()))).await else { return };
    assert_eq!(call_text(&client, "bad", json!({})).await, "through");
    let endless = r#"
while True: line("noise")"#;
    let Some(client) = connect(Client::builder(hostile(TWO, endless.trim()))).await else { return };
    let error = call(&client, "bad", json!({})).await.unwrap_err();
    assert!(error.code() == Code::Dependency && error.message().contains("disconnected"), "{error}");
    assert_eq!(call_text(&client, "ok", json!({})).await, "ok", "the program was restarted");
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_for_a_silent_server_are_bounded() {
    let limit = Duration::from_millis(700);
    let silent = |discover: &str, list: &str| {
        Endpoint::program(["python3".to_owned(), "-c".to_owned(), script("", discover, list, "pass")])
    };
    for (discover, list, text) in
        [("pass", TWO, "`bad` did not answer `initialize`"), (LEGACY, "pass", "listing the server `bad`")]
    {
        let connected = Client::builder(silent(discover, list)).name("bad").connect_timeout(limit).connect();
        let error = connected.await.unwrap_err();
        if skipped(&error) {
            return;
        }
        assert!(error.code() == Code::Timeout && error.message().contains(text), "{error}");
    }
    let Some(client) = connect(Client::builder(silent(LEGACY, TWO)).timeout(limit)).await else { return };
    assert_eq!(call(&client, "bad", json!({})).await.unwrap_err().code(), Code::Timeout);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_start_is_reported_with_the_stderr_output() {
    let begin = "sys.stderr.write('loading ' + os.environ['KEY'] + '\\n'); sys.stderr.flush()";
    let source = script(begin, "time.sleep(100)", TWO, "pass");
    let endpoint = Endpoint::Program {
        argv: vec!["python3".into(), "-c".into(), source.into()],
        env: vec![("KEY".to_owned(), "hunter2hunter2".into())],
        dir: None,
        level: Level::Standard,
    };
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&events);
    let connected = Client::builder(endpoint)
        .name("bad")
        .connect_timeout(Duration::from_secs(12))
        .on_start(move |event| sink.lock().unwrap().push(format!("{event:?}")))
        .connect();
    let error = connected.await.unwrap_err();
    if skipped(&error) {
        return;
    }
    let events = events.lock().unwrap();
    let [started, waiting] = events.as_slice() else { panic!("{events:?}") };
    assert!(started.starts_with("Started"), "{started}");
    assert!(waiting.contains("loading [secret]") && waiting.contains("limit: 12s"), "{waiting}");
    assert_eq!(error.context()["stderr"], "loading [secret]", "{error:?}");
}

fn skipped(error: &ToolError) -> bool {
    let skipped = error.message().contains("python3");
    if skipped {
        println!("SKIP hostile servers: python3 is not installed");
    }
    skipped
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_input_rounds_are_limited() {
    let source = script("", MODERN, TWO, r#"answer({"resultType": "input_required", "requestState": "s"})"#);
    let endpoint = Endpoint::program(["python3".to_owned(), "-c".to_owned(), source]);
    let Some(client) = connect(Client::builder(endpoint)).await else { return };
    let error = call(&client, "bad", json!({})).await.unwrap_err();
    assert!(error.code() == Code::Limit && error.message().contains("more than 20 times"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_start_reports_stderr_without_secrets() {
    let source = script(
        "sys.stderr.write('failed with ' + os.environ['KEY'] + '\\n'); sys.exit(1)",
        LEGACY,
        TWO,
        "pass",
    );
    let endpoint = Endpoint::Program {
        argv: vec!["python3".into(), "-c".into(), source.into()],
        env: vec![("KEY".to_owned(), "hunter2hunter2".into())],
        dir: None,
        level: Level::Standard,
    };
    let error = Client::builder(endpoint).name("bad").connect().await.unwrap_err();
    if skipped(&error) {
        return;
    }
    assert_eq!(error.code(), Code::Dependency);
    let text = format!("{error:#?}");
    assert!(text.contains("failed with") && !text.contains("hunter2"), "{text}");
    let nothing = Endpoint::program(Vec::<String>::new());
    assert_eq!(Client::builder(nothing).connect().await.unwrap_err().code(), Code::InvalidInput);
    let missing = Endpoint::program(["no-such-program-anywhere"]);
    let error = Client::builder(missing).connect().await.unwrap_err();
    assert!(error.message().contains("no-such-program-anywhere"), "{error}");
}
