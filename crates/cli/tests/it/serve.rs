//! `serve` over stdio and HTTP.

use std::fs::Permissions;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{TestEnv, eventually};

pub(crate) fn modern(id: u64, method: &str, mut params: Value) -> String {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

pub(crate) fn call(id: u64, tool: &str, arguments: &Value) -> String {
    modern(id, "tools/call", json!({ "name": tool, "arguments": arguments }))
}

/// A free address.
pub(crate) fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

pub(crate) fn get(address: SocketAddr, path: &str, more: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{more}\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// The answer to a client; `None` without a server.
pub(crate) fn post(address: SocketAddr, method: &str, params: Value, more: &str) -> Option<Value> {
    let name = params["name"].as_str().map(|name| format!("Mcp-Name: {name}\r\n")).unwrap_or_default();
    let body = modern(1, method, params);
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nAccept: \
         application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n{name}{more}\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    let data = body.lines().filter_map(|line| line.strip_prefix("data:")).next_back().unwrap_or(body);
    serde_json::from_str(data).ok()
}

/// The names of the tools in an answer.
pub(crate) fn tools(answer: &Value) -> Vec<&str> {
    let tools = answer["result"]["tools"].as_array().into_iter().flatten();
    tools.filter_map(|tool| tool["name"].as_str()).collect()
}

#[test]
pub(crate) fn serve_answers_over_stdio() {
    let env = TestEnv::new();
    env.write("notes.md", "remember the milk\n");
    let lines = [
        modern(1, "server/discover", json!({})),
        modern(2, "tools/list", json!({})),
        call(3, "calculate", &json!({ "expression": "6 * 7" })),
        call(4, "read_file", &json!({ "path": "notes.md" })),
        call(5, "read_file", &json!({ "path": "/etc/passwd" })),
    ];
    let input = lines.join("\n") + "\n";
    for words in [
        &["serve", "builtin:calculate,builtin:read_file"][..],
        &["serve", "builtin:calculate", "builtin:read_file", "--name", "mine"],
    ] {
        let finished = env.run_with(input.clone(), words).ok();
        let mut answers = finished.lines();
        answers.sort_by_key(|answer| answer["id"].as_u64());
        assert_eq!(answers.len(), 5, "{finished}");
        let name = if words.contains(&"mine") { "mine" } else { "toolpost" };
        assert_eq!(
            answers[0]["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], name,
            "{finished}"
        );
        let tools = answers[1]["result"]["tools"].as_array().unwrap();
        assert_eq!(tools.iter().map(|tool| &tool["name"]).collect::<Vec<_>>(), ["calculate", "read_file"]);
        assert!(answers[2]["result"]["content"][0]["text"].as_str().unwrap().contains("42"), "{finished}");
        assert!(
            answers[3]["result"]["content"][0]["text"].as_str().unwrap().contains("the milk"),
            "{finished}"
        );
        assert_eq!(answers[4]["result"]["isError"], true, "{finished}");
    }
}

#[test]
pub(crate) fn http_and_websocket_clients_are_served_until_a_signal() {
    for (option, scheme, path) in [("--http", "http", "mcp"), ("--ws", "ws", "ws")] {
        let env = TestEnv::new();
        let address = free();
        let running =
            env.start(["serve", "builtin:calculate", option, &address.to_string(), "--json", "--no-token"]);
        eventually("it answers", || get(address, "/health", "").is_some_and(|answer| answer.ends_with("OK")));
        let target = format!("{scheme}://{address}/{path}");
        assert_eq!(env.run(["call", &target, "calculate", "expression=6*7", "--quiet"]).ok().out, "42\n");
        assert!(get(address, "/status", "").unwrap().contains("\"tools\":1"));
        assert!(get(address, "/health", "Origin: http://evil.com\r\n").unwrap().starts_with("HTTP/1.1 403"));
        running.signal(Signal::TERM);
        let finished = running.finish().exit(0);
        let ready = finished.json();
        assert_eq!(ready["type"], "ready");
        assert_eq!(ready["url"], format!("{scheme}://{address}/{path}"));
        assert_eq!(ready["health"], format!("http://{address}/health"));
        assert!(ready["token_file"].is_null(), "{ready}");
    }
}

/// A world with a directory for generated tokens, and that directory.
fn with_tokens() -> (TestEnv, PathBuf) {
    let env = TestEnv::new();
    let state = env.path("../state");
    (env.with("XDG_STATE_HOME", &state), state.join("toolpost/serve-tokens"))
}

#[test]
pub(crate) fn a_token_is_generated_stored_and_required() {
    let (env, directory) = with_tokens();
    let address = free();
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    let mut tokens = Vec::new();
    for (option, name, is_shown) in
        [("--http", "toolpost", true), ("--ws", "toolpost", false), ("--http", "my tools/../x", true)]
    {
        let running = env.start(["serve", "builtin:calculate", "--name", name, option, &address.to_string()]);
        eventually("it answers", || get(address, "/health", "").is_some_and(|answer| answer.ends_with("OK")));
        let file =
            directory.join(format!("{}@{address}", name.replace(' ', "%20").replace("/../", "%2f%2e%2e%2f")));
        let token = std::fs::read_to_string(&file).unwrap().trim().to_owned();
        assert!(token.len() == 64 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{token}");
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(directory.metadata().unwrap().mode() & 0o777, 0o700);
        let wrong = format!("{}{}", &token[..63], if token.ends_with('0') { '1' } else { '0' });
        for header in ["", &bearer(&wrong), &format!("Authorization: Basic {token}\r\n")] {
            for path in ["/mcp", "/ws", "/status"] {
                let answer = get(address, path, header).unwrap().to_lowercase();
                assert!(answer.starts_with("http/1.1 401"), "{path} {header}: {answer}");
                assert!(answer.contains("\r\nwww-authenticate: bearer"), "{answer}");
            }
        }
        assert!(get(address, "/status", &bearer(&token)).unwrap().starts_with("HTTP/1.1 200"));
        running.signal(Signal::TERM);
        let finished = running.finish().exit(0);
        assert!(finished.err.contains(&file.display().to_string()), "{finished}");
        assert_eq!(finished.err.contains(&format!("Authorization: Bearer {token}")), is_shown, "{finished}");
        assert!(!finished.out.contains(&token), "{finished}");
        tokens.push(token);
    }
    assert_eq!(tokens[0], tokens[1], "clients of the same name and address keep their token");
    assert_ne!(tokens[0], tokens[2]);
}

#[test]
pub(crate) fn a_generated_token_reaches_clients_by_its_file_or_a_variable() {
    let (env, _) = with_tokens();
    let address = free();
    let running = env.start(["serve", "builtin:calculate", "--http", &address.to_string(), "--json"]);
    eventually("it answers", || get(address, "/health", "").is_some());
    let url = format!("http://{address}/mcp");
    let server = json!({ "type": "http", "url": url, "headers": { "Authorization": "Bearer ${SERVED}" } });
    env.write(".mcp.json", json!({ "mcpServers": { "served": server } }).to_string());
    env.run(["trust", ".mcp.json"]).ok();
    env.run(["tools", &url]).exit(3);
    let sum = "expression=6 * 7";
    env.run(["call", "served", "calculate", sum]).exit(2);
    running.signal(Signal::TERM);
    let ready = running.finish().exit(0).json();
    let file = ready["token_file"].as_str().unwrap();
    env.write("served.env", format!("SERVED={}", std::fs::read_to_string(file).unwrap()));
    let running = env.start(["serve", "builtin:calculate", "--http", &address.to_string()]);
    eventually("it answers", || get(address, "/health", "").is_some());
    for words in [
        &["call", &url, "calculate", sum, "--token-file", file][..],
        &["call", "served", "calculate", sum, "--env-file", "served.env"],
    ] {
        assert!(env.run(words).ok().out.contains("42"), "{words:?}");
    }
    running.signal(Signal::TERM);
    let finished = running.finish().exit(0);
    assert!(!finished.err.contains("ERROR"), "a client that disconnects is not an error: {finished}");
}

#[test]
pub(crate) fn a_token_file_that_others_can_change_or_read_is_rejected() {
    let (env, directory) = with_tokens();
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("toolpost@127.0.0.1:0");
    let other = env.write("other", format!("{}\n", "a".repeat(64)));
    for (content, mode) in [("a".repeat(64), 0o640), ("a".repeat(64), 0o602), ("short".into(), 0o600)] {
        std::fs::write(&file, content).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let finished = env.run(["serve", "builtin:calculate", "--http", "127.0.0.1:0"]).exit(5);
        assert!(finished.err.contains("the token file") && finished.err.contains("Delete it"), "{finished}");
    }
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(other, &file).unwrap();
    env.run(["serve", "builtin:calculate", "--http", "127.0.0.1:0"]).exit(2);
    let env = env.without("XDG_STATE_HOME").without("HOME");
    let finished = env.run(["serve", "builtin:calculate", "--http", "127.0.0.1:0"]).exit(2);
    assert!(finished.err.contains("--no-token"), "{finished}");
}

#[test]
pub(crate) fn no_token_serves_every_local_user() {
    let (env, directory) = with_tokens();
    let env = env.with("TOOLPOST_SERVE_TOKEN", "of-the-environment");
    let address = free();
    let running = env.start(["serve", "builtin:calculate", "--http", &address.to_string(), "--no-token"]);
    eventually("it answers", || get(address, "/health", "").is_some());
    assert!(get(address, "/status", "").unwrap().starts_with("HTTP/1.1 200"));
    running.signal(Signal::TERM);
    let finished = running.finish().exit(0);
    assert!(finished.err.contains("every user of this machine"), "{finished}");
    assert!(!directory.exists());
    env.run(["serve", "--no-token"]).exit(2);
    env.run(["serve", "--http", "127.0.0.1:0", "--no-token", "--token-file", "tokens.txt"]).exit(2);
    let beyond = ["serve", "--http", "0.0.0.0:0", "--beyond-loopback", "--no-token"];
    assert!(env.run(beyond).exit(5).err.contains("do not pass `--no-token`"));
}

#[test]
pub(crate) fn a_token_is_from_a_file_or_the_environment_and_never_printed() {
    let env = TestEnv::new().with("TOOLPOST_SERVE_TOKEN", "from-the-environment");
    env.write("tokens.txt", "from-the-file\n\nanother\n");
    for (words, token) in [
        (&["--token-file", "tokens.txt"][..], "from-the-file"),
        (&["--token-file", "tokens.txt"], "another"),
        (&[], "from-the-environment"),
    ] {
        let address = free();
        let mut all =
            vec!["serve".to_owned(), "builtin:calculate".into(), "--http".into(), address.to_string()];
        all.extend(words.iter().map(|word| (*word).to_owned()));
        let running = env.start(all);
        eventually("it answers", || get(address, "/health", "").is_some());
        assert!(get(address, "/status", "").unwrap().starts_with("HTTP/1.1 401"), "{token}");
        let header = format!("Authorization: Bearer {token}\r\n");
        assert!(get(address, "/status", &header).unwrap().starts_with("HTTP/1.1 200"), "{token}");
        running.signal(Signal::TERM);
        let finished = running.finish().exit(0);
        assert!(!finished.to_string().contains("from-the"), "{finished}");
    }
    env.write("empty.txt", "\n");
    env.run(["serve", "--http", "127.0.0.1:0", "--token-file", "empty.txt"]).exit(2);
    env.run(["serve", "--http", "127.0.0.1:0", "--token-file", "missing.txt"]).exit(2);
}

#[test]
pub(crate) fn unusable_and_public_addresses_are_rejected() {
    let (env, tokens) = with_tokens();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let finished = env.run(["serve", "--http", &address, "--json"]).exit(4);
    assert!(finished.error()["message"].as_str().unwrap().contains(&address), "{finished}");
    let refused = env.run(["serve", "--http", "0.0.0.0:0"]).exit(5);
    assert!(refused.err.contains("--beyond-loopback"), "{refused}");
    let stored = std::fs::read_dir(&tokens).unwrap().map(|entry| entry.unwrap().file_name());
    let stored: Vec<_> = stored.filter(|name| name.to_string_lossy().contains("0.0.0.0")).collect();
    assert!(stored.is_empty(), "{stored:?}");
    env.run(["serve", "--http", "0.0.0.0:0", "--no-token"]).exit(5);
    env.run(["serve", "--http", "nowhere"]).exit(2);
    env.run(["serve", "--host", "tools.example"]).exit(2);
    env.run(["serve", "--http", "127.0.0.1:0", "--origin", "nonsense"]).exit(1);
    env.run(["serve", "no_such_tool"]).exit(2);
}

#[test]
pub(crate) fn named_hosts_and_origins_are_accepted() {
    let env = TestEnv::new();
    let address = free();
    let words =
        ["serve", "builtin:calculate", "--http", &address.to_string(), "--origin", "https://app.example"];
    let running = env.start(words);
    eventually("it answers", || get(address, "/health", "").is_some());
    assert!(get(address, "/health", "Origin: https://app.example\r\n").unwrap().starts_with("HTTP/1.1 200"));
    running.signal(Signal::TERM);
    running.finish().exit(0);
}

#[test]
pub(crate) fn allow_and_deny_filter_tools() {
    let env = TestEnv::new();
    let input = [
        modern(1, "server/discover", json!({})),
        modern(2, "tools/list", json!({})),
        call(3, "write_file", &json!({ "path": "a", "content": "b" })),
    ];
    let words = ["serve", "builtin", "--allow", "*_file", "--allow", "calculate", "--deny", "write_*"];
    let finished = env.run_with(input.join("\n") + "\n", words).ok();
    let mut answers = finished.lines();
    answers.sort_by_key(|answer| answer["id"].as_u64());
    let tools = answers[1]["result"]["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert!(names.contains(&"read_file") && names.contains(&"calculate"), "{names:?}");
    assert!(names.iter().all(|name| !name.starts_with("write_") && *name != "run_code"), "{names:?}");
    assert!(answers[2].get("error").is_some() || answers[2]["result"]["isError"] == true, "{finished}");
    assert!(!env.path("a").exists());
}

#[test]
pub(crate) fn options_of_tools_apply_to_calls() {
    let env = TestEnv::new();
    env.write("inner/notes.md", "from inside\n");
    let answer = |words: &[&str], line: String| -> Value {
        let input = format!("{}\n{line}\n", modern(1, "server/discover", json!({})));
        let finished = env.run_with(input, [&["serve"], words].concat()).ok();
        finished.lines().into_iter().find(|answer| answer["id"] == 2).unwrap()
    };
    let sum = || call(2, "calculate", &json!({ "expression": "6 * 7" }));
    let read = || call(2, "read_file", &json!({ "path": "notes.md" }));
    assert_eq!(answer(&["builtin:read_file"], read())["result"]["isError"], true);
    let inside = answer(&["builtin:read_file", "--workdir", "inner"], read());
    assert!(inside.to_string().contains("from inside"), "{inside}");
    // This client cannot show a prompt.
    let asked = answer(&["builtin:calculate", "--ask"], sum());
    assert!(!asked.to_string().contains("42"), "{asked}");
    let approved = answer(&["builtin:calculate", "--ask", "--approve", "calculate"], sum());
    assert!(approved.to_string().contains("42"), "{approved}");
    let finished = env.run(["serve", "builtin:calculate", "--approve", "nothing"]).exit(2);
    assert!(finished.to_string().contains("nothing"), "{finished}");
    let code = || call(2, "run_code", &json!({ "language": "sh", "code": "true" }));
    let level = |words: &[&str]| answer(words, code())["result"]["structuredContent"]["level"].take();
    assert_eq!(level(&["builtin:run_code", "--level", "minimal"]), "minimal");
    assert_ne!(level(&["builtin:run_code"]), "minimal");
    env.run(["serve", "builtin:run_code", "--level", "nonsense"]).exit(2);
}

#[test]
pub(crate) fn a_certificate_and_its_key_serve_https() {
    let env = TestEnv::new();
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
                 -keyout key.pem -out cert.pem";
    #[expect(clippy::disallowed_methods, reason = "makes the certificate of the test")]
    let made = std::process::Command::new("openssl")
        .args(words.split_ascii_whitespace())
        .current_dir(env.path(""))
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        println!("SKIP a_certificate_and_its_key_serve_https: no `openssl` that makes certificates");
        return;
    }
    let address = free();
    let all = ["serve", "builtin:calculate", "--http", &address.to_string(), "--json"];
    let running = env.start([&all[..], &["--tls-cert", "cert.pem", "--tls-key", "key.pem"]].concat());
    eventually("it listens", || TcpStream::connect(address).is_ok());
    assert!(!get(address, "/health", "").is_some_and(|answer| answer.contains("200")));
    running.signal(Signal::TERM);
    assert_eq!(running.finish().exit(0).json()["url"], format!("https://{address}/mcp"));
    env.run(["serve", "--http", "127.0.0.1:0", "--tls-cert", "cert.pem"]).exit(2);
    let no_files = ["serve", "builtin:calculate", "--http", "127.0.0.1:0"];
    env.run([&no_files[..], &["--tls-cert", "key.pem", "--tls-key", "key.pem"]].concat()).exit(1);
}

#[test]
pub(crate) fn a_named_host_header_is_accepted() {
    let env = TestEnv::new();
    let address = free();
    let running =
        env.start(["serve", "builtin:calculate", "--http", &address.to_string(), "--host", "tools.example"]);
    eventually("it answers", || get(address, "/health", "").is_some());
    let named = |host: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(named("tools.example").starts_with("HTTP/1.1 200"));
    assert!(named("other.example").starts_with("HTTP/1.1 403"));
    running.signal(Signal::TERM);
    running.finish().exit(0);
}
