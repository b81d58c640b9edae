//! Tasks of `serve` that survive a killed server.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::serve::free;
use crate::support::{Running, TestEnv, eventually};

/// Two tools that sleep; one of them is idempotent.
const SLEEP: &str = r#"kind = "command"
v = 1
program = "sh"

[[tool]]
name = "once"
description = "Sleep, once."
args = ["-c", "sleep \"$1\"; echo \"slept $1\"", "sh", "{seconds}"]
[tool.parameters.seconds]
type = "string"
description = "How long."
pattern = "^[0-9.]+$"
[tool.output]
format = "text"

[[tool]]
name = "again"
description = "Sleep, as often as it takes."
read_only = true
args = ["-c", "sleep \"$1\"; echo \"slept $1\"", "sh", "{seconds}"]
[tool.parameters.seconds]
type = "string"
description = "How long."
pattern = "^[0-9.]+$"
[tool.output]
format = "text"
"#;

/// Posts a message of a client that supports tasks.
pub(crate) fn post(address: SocketAddr, method: &str, mut params: Value, more: &str) -> Option<Value> {
    let name = ["name", "taskId"].iter().find_map(|key| params.get(*key)?.as_str()).unwrap_or_default();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: {method}\r\nMcp-Name: {name}\r\n{more}"
    );
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {
            "extensions": { "io.modelcontextprotocol/tasks": {} }
        },
    });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
    let mut stream = TcpStream::connect(address).ok()?;
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    serde_json::from_str(body).ok()
}

fn call(address: SocketAddr, tool: &str, seconds: &str) -> Value {
    let params = json!({ "name": tool, "arguments": { "seconds": seconds } });
    post(address, "tools/call", params, "").unwrap()["result"].take()
}

fn begin(address: SocketAddr, tool: &str, seconds: &str) -> String {
    let begun = call(address, tool, seconds);
    assert_eq!(begun["resultType"], "task", "{begun}");
    begun["taskId"].as_str().unwrap().to_owned()
}

fn get(address: SocketAddr, id: &str) -> Value {
    post(address, "tasks/get", json!({ "taskId": id }), "").unwrap()
}

fn end(address: SocketAddr, id: &str) -> Value {
    let task = || get(address, id)["result"].take();
    eventually("the task ends", || {
        let task = task();
        let status = task["status"].as_str().unwrap_or_else(|| panic!("{task}"));
        !["working", "input_required"].contains(&status)
    });
    task()
}

fn world() -> TestEnv {
    let env = TestEnv::new().leaving_files();
    env.write("sleep.toml", SLEEP);
    env.run(["trust", "sleep.toml"]).ok();
    env
}

fn serve(env: &TestEnv, address: SocketAddr, more: &[&str]) -> Running {
    let address_text = address.to_string();
    let words = [&["serve", "sleep.toml", "--http", &address_text, "--no-token", "--level", "minimal"], more]
        .concat();
    let running = env.start(words);
    eventually("it answers", || TcpStream::connect(address).is_ok());
    running
}

#[test]
pub(crate) fn a_killed_server_restores_its_tasks() {
    let env = world();
    let address = free();
    let words = ["--task-store", "../home/kept/tasks.db", "--task-after", "100ms"];
    let running = serve(&env, address, &words);
    let finished = begin(address, "once", "0.3");
    let before = end(address, &finished);
    assert!(before["result"].to_string().contains("slept 0.3"), "{before}");
    let once = begin(address, "once", "61.5");
    let again = begin(address, "again", "1.5");
    let store = env.path("../home/kept/tasks.db");
    let other = env.run(["serve", "sleep.toml", "--task-store", store.to_str().unwrap()]).exit(4);
    assert!(other.err.contains("in use by another server"), "{other}");
    running.signal(Signal::KILL);
    running.finish();
    let running = serve(&env, address, &words);
    let after = end(address, &finished);
    assert_eq!(after, before, "a result is what it was");
    let failed = get(address, &once)["result"].take();
    assert_eq!(failed["status"], "failed", "{failed}");
    assert!(failed["error"]["message"].as_str().unwrap().contains("interrupted"), "{failed}");
    let repeated = end(address, &again);
    assert!(repeated["result"].to_string().contains("slept 1.5"), "{repeated}");
    running.signal(Signal::TERM);
    running.finish().exit(0);
    // Without the file, a new server has no tasks.
    let running = serve(&env, address, &[]);
    assert_eq!(get(address, &finished)["error"]["code"], -32602);
    running.signal(Signal::TERM);
    running.finish().exit(0);
}

#[test]
pub(crate) fn task_options_set_the_delay_and_the_lifetime() {
    let env = world();
    let address = free();
    let running = serve(&env, address, &["--task-after", "1h"]);
    let done = call(address, "once", "0.3");
    assert!(done["content"].to_string().contains("slept 0.3"), "{done}");
    running.signal(Signal::TERM);
    running.finish().exit(0);
    let running = serve(&env, address, &["--task-after", "50ms", "--task-ttl", "90s"]);
    let begun = call(address, "once", "0.3");
    assert_eq!((&begun["resultType"], &begun["ttlMs"]), (&json!("task"), &json!(90_000)), "{begun}");
    end(address, begun["taskId"].as_str().unwrap());
    running.signal(Signal::TERM);
    running.finish().exit(0);
    env.run(["serve", "sleep.toml", "--task-after", "soon"]).exit(2);
    env.run(["serve", "sleep.toml", "--task-ttl", "0s"]).exit(2);
    env.run(["serve", "sleep.toml", "--task-store", "../home"]).exit(1);
}
