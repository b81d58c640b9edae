//! Server programs: start checks, expiring lists and grants. The server is a Python script.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;
use toolpost_core::{Call, Code, StartCheck, ToolError, ToolSource as _};
use toolpost_mcp::client::{Client, ClientBuilder, Endpoint};
use toolpost_testkit::eventually;

use super::support::call_text;

const SCRIPT: &str = r#"
import sys, json
listings = 0
for text in sys.stdin:
    message = json.loads(text)
    method, i, params = message.get("method"), message.get("id"), message.get("params") or {}
    if i is None:
        continue
    answer = {"jsonrpc": "2.0", "id": i}
    if method == "initialize":
        answer["result"] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "o", "version": "1"}}
    elif method == "tools/list":
        listings += 1
        names = ["read", "listing-%d" % listings]
        answer["result"] = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names], "ttlMs": TTL}
    elif method == "tools/call":
        try:
            read = open(params["arguments"]["path"]).read()
        except OSError as error:
            read = "denied: " + error.strerror
        answer["result"] = {"content": [{"type": "text", "text": read}]}
    else:
        answer["error"] = {"code": -32601, "message": "no"}
    print(json.dumps(answer), flush=True)
"#;

async fn connect(ttl: &str, build: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Option<Arc<Client>> {
    let script = SCRIPT.replace("TTL", ttl);
    let endpoint = Endpoint::program(["python3".to_owned(), "-c".to_owned(), script]);
    match build(Client::builder(endpoint)).connect().await {
        Ok(client) => Some(client),
        Err(error) if error.message().contains("python3") => {
            println!("SKIP server programs: python3 is not installed");
            None
        }
        Err(error) => panic!("{error:#?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_runs_before_the_start_and_can_reject_it() {
    let runs = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&runs);
    let check = StartCheck::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    if connect("None", |builder| builder.start_check(check)).await.is_none() {
        return;
    }
    assert!(runs.load(Ordering::Relaxed) > 0);
    let check = StartCheck::new(|| Err(ToolError::permission("it has changed")));
    let missing = Endpoint::program(["no-such-program-anywhere"]);
    let error = Client::builder(missing).start_check(check).connect().await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Permission, "it has changed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_expires_after_its_ttl_only() {
    let last = async |client: &Client| client.list().await.unwrap().last().unwrap().name.clone();
    let Some(client) = connect("100", |builder| builder).await else { return };
    eventually("the list is requested again", async || last(&client).await != "listing-1").await;
    for ttl in ["None", "3600000"] {
        let Some(client) = connect(ttl, |builder| builder).await else { return };
        for _ in 0..3 {
            assert_eq!(last(&client).await, "listing-1");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_gets_its_grants_and_its_output_is_masked() {
    let directory = tempfile::tempdir().unwrap();
    let outside = directory.path().canonicalize().unwrap();
    std::fs::create_dir(outside.join("work")).unwrap();
    std::fs::write(outside.join("read"), "outside").unwrap();
    std::fs::write(outside.join("other"), "hidden").unwrap();
    let grants = json!({
        "secrets": [{ "name": "KEY", "raw": true }], "readable": [outside.join("read")],
        "level": "strict", "workdir": outside.join("work"),
    });
    let grants: toolpost_sandbox::Grants = serde_json::from_value(grants).unwrap();
    let granted = grants.resolve(&mut |_| Some("canary-of-a-key".to_owned())).unwrap();
    let Some(client) = connect("None", |builder| builder.granted(granted)).await else { return };
    let read = async |path: &str| call_text(&client, "read", json!({ "path": path })).await;
    assert_eq!(read(outside.join("read").to_str().unwrap()).await, "outside");
    assert!(read(outside.join("other").to_str().unwrap()).await.starts_with("denied"));
    assert!(read("/proc/self/environ").await.contains("KEY=[secret]"));
    assert_eq!(read("/proc/self/cwd/none").await, "denied: No such file or directory");
    std::fs::write(outside.join("work/new"), "in the directory").unwrap();
    assert_eq!(read("/workspace/new").await, "in the directory");
    let reply = client.call(Call::new("read", json!({ "path": "/none" }))).await;
    assert_eq!(reply.record.sandbox, Some(json!({ "raw_variables": ["KEY"] })));
}
