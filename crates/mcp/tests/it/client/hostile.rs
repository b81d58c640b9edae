//! Servers that are broken or mean no good. They are scripts: the library would not let a server do such things.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use toolpost_core::{Code, ToolError, ToolSource as _};
use toolpost_mcp::client::{Client, ClientBuilder, Endpoint};
use toolpost_sandbox::Level;

use super::support::{call, said};

/// What every script begins with; `LIST` and `CALL` are what the two methods do.
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
    for (list, change, tools, problem) in [
        (
            r#"n = int(params.get("cursor") or 0); answer({"tools": [tool(f"t{n}")], "nextCursor": str(n + 1)})"#,
            5,
            5,
            "after 5 pages",
        ),
        (r#"answer({"tools": [tool("same")], "nextCursor": "x"})"#, 5, 1, "duplicate name `same`"),
        (r#"answer({"tools": [tool(f"t{n}") for n in range(5000)]})"#, 5, 100, "after 100"),
    ] {
        let builder = Client::builder(hostile(list, "pass")).limits(|limits| {
            limits.pages = change;
            limits.items = 100;
        });
        let Some(client) = connect(builder).await else { return };
        assert_eq!(client.list().await.unwrap().len(), tools, "{list}");
        assert!(client.problems().iter().any(|found| found.contains(problem)), "{:?}", client.problems());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_tool_does_not_disable_the_others() {
    let list = r#"
deep = {}
for _ in range(60): deep = {"not": deep}
answer({"tools": [
    tool("ok"), tool(""), tool("ok"), {"name": 5}, {"name": "no_schema"},
    {"name": "text", "inputSchema": {"type": "string"}},
    {"name": "deep", "inputSchema": deep},
    {"name": "large", "inputSchema": {"type": "object", "description": "x" * 2000}},
    {"name": "wrong", "inputSchema": {"type": "object", "properties": {"a": {"type": "nonsense"}}}},
    {"name": "far", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "http://192.0.2.1/a.json"}}}},
    tool("last", description="x" * 100000)]})"#;
    let builder = Client::builder(hostile(list.trim(), r#"answer({"content": []})"#)).limits(|limits| {
        limits.schema_depth = 20;
        limits.schema_bytes = 1_000;
    });
    let Some(client) = connect(builder).await else { return };
    let tools = client.list().await.unwrap();
    let names: Vec<_> = tools.iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, ["ok", "wrong", "far", "last"]);
    assert!(tools[3].description.len() < 20_000);
    let problems = client.problems().join("\n");
    for expected in [
        "number 4",
        "number 5",
        "`deep`",
        "`large`",
        "`text`",
        "more than 20 deep",
        "limit of 1000",
        "invalid input schema of the tool `wrong`",
    ] {
        assert!(problems.contains(expected), "{expected} in {problems}");
    }
    call(&client, "wrong", json!({ "a": 1 })).await.unwrap();
    call(&client, "far", json!({ "a": 1 })).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_response_fails_only_its_call() {
    for (bad, code, text) in [
        (r#"answer({"content": [{"type": "text", "text": "x" * 3000000}]})"#, Code::Limit, "too long"),
        (
            r#"line('{"jsonrpc":"2.0","id":%d,"result":%s%s}' % (i, "[" * 100000, "]" * 100000))"#,
            Code::Dependency,
            "nested too deeply",
        ),
        (
            r#"line('{"jsonrpc":"2.0","id":%d,"result":{"x":[%s]}}' % (i, ",".join("1" * 600000)))"#,
            Code::Limit,
            "too long",
        ),
        (r#"answer("text")"#, Code::Dependency, "unexpected result type"),
        (r#"answer({"tools": []})"#, Code::Dependency, "unexpected result type"),
        (r#"answer({"content": [{"type": "hologram"}]})"#, Code::Dependency, "unexpected result type"),
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
        let builder = Client::builder(hostile(TWO, bad)).limits(|limits| limits.message_bytes = 1 << 20);
        let Some(client) = connect(builder).await else { return };
        let error = call(&client, "bad", json!({})).await.unwrap_err();
        assert_eq!(error.code(), code, "{bad}: {error}");
        assert!(error.message().contains(text) && error.message().len() < 10_000, "{bad}: {error}");
        assert_eq!(said(&client, "ok", json!({})).await, "ok", "{bad}");
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
    send({"jsonrpc": "2.0", "method": "notifications/unheard_of", "params": {}})
send({"jsonrpc": "2.0", "id": 7, "method": "unheard/of", "params": {}})
answer({"content": [{"type": "text", "text": "through"}]})"#;
    let Some(client) = connect(Client::builder(hostile(TWO, noise.trim()))).await else { return };
    assert_eq!(said(&client, "bad", json!({})).await, "through");
    let endless = r#"
while True: line("noise")"#;
    let Some(client) = connect(Client::builder(hostile(TWO, endless.trim()))).await else { return };
    let error = call(&client, "bad", json!({})).await.unwrap_err();
    assert!(error.code() == Code::Dependency && error.message().contains("disconnected"), "{error}");
    assert_eq!(said(&client, "ok", json!({})).await, "ok", "the program was restarted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_never_answers_is_waited_for_a_bounded_time() {
    let limit = Duration::from_millis(700);
    let begun = Instant::now();
    let silent = |discover: &str, list: &str| {
        Endpoint::program(["python3".to_owned(), "-c".to_owned(), script("", discover, list, "pass")])
    };
    let error =
        Client::builder(silent("pass", TWO)).name("bad").connect_timeout(limit).connect().await.unwrap_err();
    assert!(error.code() == Code::Timeout || skipped(&error), "{error}");
    assert!(error.message().contains("`bad` did not answer `initialize`") || skipped(&error), "{error}");
    let error =
        Client::builder(silent(LEGACY, "pass")).name("bad").list_timeout(limit).connect().await.unwrap_err();
    assert!(error.code() == Code::Timeout || skipped(&error), "{error}");
    let Some(client) = connect(Client::builder(silent(LEGACY, TWO)).timeout(limit)).await else { return };
    assert_eq!(call(&client, "bad", json!({})).await.unwrap_err().code(), Code::Timeout);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// Who waits is told what for, with what the server wrote so far, and at the limit once more.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_reported_while_it_is_waited_for() {
    let begin = "sys.stderr.write('loading ' + os.environ['KEY'] + '\\n'); sys.stderr.flush()";
    let source = script(begin, "time.sleep(100)", TWO, "pass");
    let endpoint = Endpoint::Program {
        argv: vec!["python3".into(), "-c".into(), source.into()],
        env: vec![("KEY".to_owned(), "hunter2hunter2".into())],
        dir: None,
        level: Level::Standard,
    };
    let events = Arc::new(Mutex::new(Vec::new()));
    let (sink, start) = (Arc::clone(&events), Instant::now());
    let connected = Client::builder(endpoint)
        .name("bad")
        .connect_timeout(Duration::from_secs(4))
        .on_start(move |event| sink.lock().unwrap().push((start.elapsed(), format!("{event:?}"))))
        .connect();
    let error = connected.await.unwrap_err();
    if skipped(&error) {
        return;
    }
    let events = events.lock().unwrap();
    let [(_, started), (after, waiting)] = events.as_slice() else { panic!("{events:?}") };
    assert!(started.starts_with("Started"), "{started}");
    assert!(*after < Duration::from_millis(2_500), "{after:?}");
    assert!(waiting.contains("loading [secret]") && waiting.contains("limit: 4s"), "{waiting}");
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
async fn questions_without_end_are_ended() {
    let source = script("", MODERN, TWO, r#"answer({"resultType": "input_required", "requestState": "s"})"#);
    let builder = Client::builder(Endpoint::program(["python3".to_owned(), "-c".to_owned(), source]))
        .limits(|limits| limits.rounds = 3);
    let Some(client) = connect(builder).await else { return };
    let error = call(&client, "bad", json!({})).await.unwrap_err();
    assert!(error.code() == Code::Limit && error.message().contains("more than 3 times"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_ends_at_once_says_why_without_its_secrets() {
    let source = script(
        "sys.stderr.write('no luck with ' + os.environ['KEY'] + '\\n'); sys.exit(1)",
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
    assert!(text.contains("no luck with") && !text.contains("hunter2"), "{text}");
    let nothing = Endpoint::program(Vec::<String>::new());
    assert_eq!(Client::builder(nothing).connect().await.unwrap_err().code(), Code::InvalidInput);
    let missing = Endpoint::program(["no-such-program-anywhere"]);
    let error = Client::builder(missing).connect().await.unwrap_err();
    assert!(error.message().contains("no-such-program-anywhere"), "{error}");
}
