//! What a client may be told, and that it listens. The server is a script that asks back, in threads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use toolpost_core::Code;
use toolpost_core::{Answer, StartCheck, ToolError, ToolSource as _};
use toolpost_mcp::client::{Client, ClientBuilder, Endpoint};
use toolpost_sandbox::{Level, Limits};
use toolpost_testkit::MemoryPort;

use super::support::{call, said};

const SCRIPT: &str = r#"
import sys, json, time, threading
lock, waiting, now, most, listings = threading.Lock(), {}, 0, 0, 0
def send(value):
    with lock:
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()
def ask(method, params={}):
    i = "s%d" % len(waiting)
    done = threading.Event()
    waiting[i] = [done, None]
    send({"jsonrpc": "2.0", "id": i, "method": method, "params": params})
    done.wait(20)
    return waiting[i][1]
def work(name, arguments):
    global now, most
    if name == "roots":
        return json.dumps([root["uri"] for root in ask("roots/list")["roots"]])
    if name == "read":
        try:
            return open(arguments["path"]).read()
        except OSError as error:
            return "refused: " + error.strerror
    if name == "grow":
        return str(len(bytearray(arguments["bytes"])))
    if name == "meet":
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.1)
        with lock:
            now -= 1
        return str(most)
def handle(message):
    global listings
    method, i, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method == "server/discover":
        send({"jsonrpc": "2.0", "id": i, "error": {"code": -32601, "message": "no"}})
        return
    if method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "o", "version": "1"}}
    elif method == "tools/list":
        listings += 1
        names = ["roots", "read", "grow", "meet", "listing-%d" % listings]
        if ASKS:
            sampled = ask("sampling/createMessage", {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 5})
            asked = ask("elicitation/create", {"message": "Which?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}})
            names = [sampled["content"]["text"].replace(": ", "-"), asked["content"]["name"]]
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names], "ttlMs": TTL}
    else:
        result = {"content": [{"type": "text", "text": work(params["name"], params.get("arguments") or {})}]}
    send({"jsonrpc": "2.0", "id": i, "result": result})
for text in sys.stdin:
    message = json.loads(text)
    if "method" not in message:
        found = waiting[message["id"]]
        found[1] = message.get("result")
        found[0].set()
    elif "id" in message:
        threading.Thread(target=handle, args=(message,), daemon=True).start()
"#;

async fn connect(
    asks: bool,
    ttl: &str,
    build: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> Option<Arc<Client>> {
    let script = SCRIPT.replace("ASKS", if asks { "True" } else { "False" }).replace("TTL", ttl);
    let endpoint = Endpoint::program(["python3".to_owned(), "-c".to_owned(), script]);
    match build(Client::builder(endpoint).name("options")).connect().await {
        Ok(client) => Some(client),
        Err(error) if error.message().contains("python3") => {
            println!("SKIP options of the client: python3 is not installed");
            None
        }
        Err(error) => panic!("{error:#?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_is_told_the_folders_of_the_operator() {
    let Some(client) = connect(false, "None", |builder| builder.root("/srv/one").root("/srv/two")).await
    else {
        return;
    };
    assert_eq!(said(&client, "roots", json!({})).await, r#"["file:///srv/one/", "file:///srv/two/"]"#);
    let Some(client) = connect(false, "None", |builder| builder).await else { return };
    assert_eq!(said(&client, "roots", json!({})).await, "[]");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_runs_before_the_start_and_can_reject_it() {
    let asked = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let count = Arc::clone(&asked);
    let check = StartCheck::new(move || {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    });
    if connect(false, "None", |builder| builder.start_check(check)).await.is_none() {
        return;
    }
    assert!(asked.load(std::sync::atomic::Ordering::Relaxed) > 0);
    let check = StartCheck::new(|| Err(ToolError::permission("it has changed")));
    let missing = Endpoint::program(["no-such-program-anywhere"]);
    let error = Client::builder(missing).start_check(check).connect().await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Permission, "it has changed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_reads_what_it_is_allowed_to() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    std::fs::write(&one, "a word").unwrap();
    std::fs::write(&other, "a secret").unwrap();
    let Some(client) = connect(false, "None", |builder| builder.readable(&one)).await else { return };
    assert_eq!(said(&client, "read", json!({ "path": one })).await, "a word");
    assert!(said(&client, "read", json!({ "path": other })).await.starts_with("refused"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_has_the_limits_that_it_was_given() {
    let mut limits = Limits::for_level(Level::Standard);
    limits.memory = 128 << 20;
    let Some(client) = connect(false, "None", |builder| builder.sandbox_limits(limits)).await else { return };
    assert_eq!(said(&client, "grow", json!({ "bytes": 1_000 })).await, "1000");
    let grown = call(&client, "grow", json!({ "bytes": 300 << 20 }));
    let grown = tokio::time::timeout(Duration::from_secs(20), grown).await;
    assert!(!matches!(grown, Ok(Ok(_))), "it got 300 MiB");
    let Some(client) = connect(false, "None", |builder| builder).await else { return };
    assert_eq!(said(&client, "grow", json!({ "bytes": 300 << 20 })).await, (300 << 20).to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_calls_as_allowed_are_under_way_at_once() {
    for (most, expected) in [(2, 2..=2), (64, 3..=8)] {
        let Some(client) =
            connect(false, "None", |builder| builder.limits(|limits| limits.calls = most)).await
        else {
            return;
        };
        let calls = (0..8).map(|_| said(&client, "meet", json!({})));
        let seen = futures_util::future::join_all(calls).await;
        let seen = seen.iter().map(|text| text.parse::<usize>().unwrap()).max().unwrap();
        assert!(expected.contains(&seen), "{most}: {seen}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_of_no_call_go_to_whoever_stands_behind_the_client() {
    let port = MemoryPort::new(10, 10);
    port.answer(Answer::Given { value: json!({ "name": "ada" }) });
    let theirs: Arc<MemoryPort> = Arc::clone(&port);
    let Some(client) = connect(true, "None", move |builder| builder.port(theirs)).await else { return };
    let names: Vec<_> = client.list().await.unwrap().iter().map(|spec| spec.name.clone()).collect();
    assert_eq!(names, ["echo-hi", "ada"]);
    let heard = port.heard();
    assert_eq!((heard.samples[0].max_tokens, heard.questions[0].message.as_str()), (5, "Which?"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_asked_for_again_when_its_time_is_over() {
    let last = async |client: &Client| client.list().await.unwrap().last().unwrap().name.clone();
    let Some(client) = connect(false, "300", |builder| builder).await else { return };
    let begun = Instant::now();
    let (first, second) = (last(&client).await, last(&client).await);
    assert_eq!(first, "listing-1");
    assert!(second == "listing-1" || begun.elapsed() > Duration::from_millis(300), "{second}");
    tokio::time::sleep(Duration::from_millis(350)).await;
    assert_ne!(last(&client).await, "listing-1");
    let Some(client) = connect(false, "None", |builder| builder).await else { return };
    tokio::time::sleep(Duration::from_millis(350)).await;
    assert_eq!(last(&client).await, "listing-1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_gets_what_is_granted_and_no_value_leaves_it() {
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().canonicalize().unwrap();
    std::fs::create_dir(outside.join("work")).unwrap();
    std::fs::write(outside.join("read"), "outside").unwrap();
    let grants = json!({
        "env": [{ "name": "KEY", "raw": true }], "readable": [outside.join("read")],
        "level": "strict", "workdir": outside.join("work"),
    });
    let grants: toolpost_sandbox::Grants = serde_json::from_value(grants).unwrap();
    let granted = grants.resolve(&mut |_| Some("canary-of-a-key".to_owned())).unwrap();
    let Some(client) = connect(false, "None", |builder| builder.granted(granted)).await else { return };
    let read = async |path: &str| said(&client, "read", json!({ "path": path })).await;
    assert_eq!(read(outside.join("read").to_str().unwrap()).await, "outside");
    assert!(read("/proc/self/environ").await.contains("KEY=[secret]"));
    assert_eq!(read("/proc/self/cwd/none").await, "refused: No such file or directory");
    std::fs::write(outside.join("work/new"), "in the directory").unwrap();
    assert_eq!(read("/workspace/new").await, "in the directory");
    let reply = toolpost_core::ToolSource::call(
        &*client,
        toolpost_core::Call::new("read", json!({ "path": "/none" })),
    )
    .await;
    assert_eq!(reply.record.sandbox, Some(json!({ "raw_variables": ["KEY"] })));
}
