//! No output of `serve` has a secret, with the most verbose log.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::json;

use crate::serve::free;
use crate::serve_tasks::post;
use crate::support::{TestEnv, eventually};

/// The distinct secrets.
const TOKEN: &str = "canary-of-the-token-5f2b";
const WRONG: &str = "canary-of-a-wrong-token-91cc";
const ARGUMENT: &str = "canary-of-an-argument-7d40";
const QUERY: &str = "canary-of-a-query-33ab";

/// A tool with a secret argument that fails inside.
const LOGIN: &str = r#"kind = "command"
v = 1
program = "sh"

[[tool]]
name = "login"
description = "Log in."
read_only = true
args = ["-c", "sleep \"$1\"; echo welcome", "sh", "{seconds}"]
stdin = "{password}"
[tool.parameters.password]
type = "string"
description = "The password."
sensitive = true
[tool.parameters.seconds]
type = "string"
description = "How long it takes."
pattern = "^[0-9.]+$"
[tool.output]
format = "text"
"#;

#[test]
pub(crate) fn no_secret_is_in_a_log_an_error_a_status_or_a_file() {
    let env = TestEnv::new();
    env.write("login.toml", LOGIN);
    env.run(["trust", "login.toml"]).ok();
    env.write("../home/tokens.txt", format!("{TOKEN}\n"));
    let address = free();
    let address_text = address.to_string();
    let mut words =
        vec!["serve", "login.toml", "--http", &address_text, "--token-file", "../home/tokens.txt"];
    words.extend([
        "--level",
        "minimal",
        "--log",
        "trace,rmcp=trace",
        "--log-file",
        "../home/log.txt",
        "-vvv",
        "--json",
    ]);
    words.extend(["--task-store", "../home/tasks.db", "--task-after", "100ms"]);
    let running = env.start(words);
    eventually("it answers", || TcpStream::connect(address).is_ok());
    let header = |token: &str| format!("Authorization: Bearer {token}\r\n");
    let mut heard = String::new();
    for seconds in ["0", "0.4", "no number"] {
        let arguments = json!({ "password": ARGUMENT, "seconds": seconds });
        let params = json!({ "name": "login", "arguments": arguments });
        let answer = post(address, "tools/call", params, &header(TOKEN)).unwrap();
        if let Some(id) = answer["result"]["taskId"].as_str() {
            eventually("the task ends", || {
                let task = post(address, "tasks/get", json!({ "taskId": id }), &header(TOKEN)).unwrap();
                task["result"]["status"] == "completed"
            });
        }
        heard.push_str(&answer.to_string());
    }
    // Invalid in type, name and form; and a missing path.
    let params = json!({ "name": "login", "arguments": { "password": [ARGUMENT], "seconds": "0" } });
    heard.push_str(&post(address, "tools/call", params, &header(TOKEN)).unwrap().to_string());
    for request in [
        format!("GET /status HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{}\r\n", header(TOKEN)),
        format!("GET /status HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{}\r\n", header(WRONG)),
        format!("GET /health?token={QUERY} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"),
        format!("GET /no/{QUERY} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{}\r\n", header(TOKEN)),
        format!("POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Length: 3\r\n{}bad", header(TOKEN)),
        format!("GET /ws HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{}\r\n", header(TOKEN)),
    ] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let _ = stream.read_to_string(&mut heard);
    }
    running.signal(Signal::TERM);
    let finished = running.finish().exit(0);
    let log = env.read("../home/log.txt");
    assert!(
        log.contains("DEBUG toolpost::call") && log.contains("tool=login"),
        "the log says too little to prove anything: {log}"
    );
    let mut places = vec![("standard output", finished.out), ("standard error", finished.err)];
    places.push(("the log", log));
    places.push(("the answers", heard));
    for name in ["../home/tasks.db", "../home/tasks.db-wal"] {
        let bytes = std::fs::read(env.path(name)).unwrap_or_default();
        places.push((name, String::from_utf8_lossy(&bytes).into_owned()));
    }
    for (place, text) in places {
        for secret in [TOKEN, WRONG, ARGUMENT, QUERY] {
            let found = text.find(secret).map(|at| {
                let begin = text[..at].rfind('\n').unwrap_or(0);
                text[begin..].chars().take(400).collect::<String>()
            });
            assert_eq!(found, None, "{secret} is in {place}");
        }
    }
}
