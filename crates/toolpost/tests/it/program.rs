//! A tool program as a process: what the tests in memory cannot see.
#![expect(clippy::disallowed_methods, reason = "a test of a program has to start it")]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use toolpost::json;

/// An example, which is built with the tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let directory = tests.parent().and_then(std::path::Path::parent).unwrap();
    let program = directory.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(
        program.is_file(),
        "{} is not built: run `cargo build -p toolpost --examples`",
        program.display()
    );
    program
}

fn program() -> PathBuf {
    example("tool_program")
}

fn run(words: &[&str]) -> (String, String, i32) {
    let output = Command::new(program()).args(words).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code().unwrap())
}

#[test]
fn a_stray_print_is_not_on_standard_output() {
    let (output, errors, status) = run(&["add", r#"{"a": 1, "b": 2}"#]);
    assert_eq!(output, "{\"status\":\"success\",\"result\":{\"result\":3}}\n");
    assert_eq!(errors, "this goes to standard error\n");
    assert_eq!(status, 0);
}

#[test]
fn a_person_on_a_terminal_reads_text() {
    let line = format!("{} add --a 1 --b 2", program().display());
    let Ok(shown) = Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output()
    else {
        eprintln!("SKIP a_person_on_a_terminal_reads_text: `script` of util-linux is missing");
        return;
    };
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.ends_with("3\r\n") && !shown.contains("status"), "{shown:?}");
}

#[test]
fn statuses_tell_what_happened() {
    for (words, expected) in [
        (&["--discover"][..], 0),
        (&["fail", "--code", "NOT_FOUND"], 1),
        (&["add"], 1),
        (&["nope"], 2),
        (&["fail", "--code", "DEPENDENCY"], 4),
        (&["fail", "--code", "PERMISSION"], 5),
        (&["fail", "--code", "LIMIT"], 6),
    ] {
        assert_eq!(run(words).2, expected, "{words:?}");
    }
}

#[test]
fn working_dir_changes_the_directory_of_the_process() {
    // What the tool lists is relative to the directory that it works in.
    let directory = env!("CARGO_MANIFEST_DIR");
    let (output, ..) = run(&["find", "--name", "Cargo.toml", "--working-dir", directory]);
    assert_eq!(output, "{\"status\":\"success\",\"result\":{\"result\":[\"Cargo.toml\"]}}\n");
    let (output, _, status) = run(&["find", "--name", "x", "--working-dir", "/does/not/exist"]);
    assert!(output.contains("INVALID_PATH") && status == 1, "{output}");
    let (output, ..) = run(&["where_am_i", "--working-dir", directory]);
    assert!(output.contains(directory), "{output}");
}

#[test]
fn a_tool_that_does_not_end_is_ended_by_its_timeout() {
    let begun = Instant::now();
    let (output, _, status) = run(&["sleep", "--milliseconds", "60000", "--timeout", "1"]);
    assert!(output.contains("\"TIMEOUT\""), "{output}");
    assert_eq!(status, 4);
    assert!(begun.elapsed() >= Duration::from_secs(1) && begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn resident_mode_keeps_its_channels_to_itself() {
    let mut child = Command::new(program())
        .arg("--resident")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut read = || {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        serde_json::from_str::<Value>(&line).unwrap()
    };
    assert_eq!(read()["type"], "hello");
    for id in 1..=3 {
        writeln!(
            input,
            "{}",
            json!({"v": 1, "id": id, "type": "call", "tool": "add", "arguments": {"a": id}})
        )
        .unwrap();
        assert_eq!(read(), json!({"v": 1, "id": id, "type": "result", "ok": {"structured": id + 10}}));
    }
    // Who reads standard input finds nothing, and takes nothing of the protocol.
    writeln!(input, "{}", json!({"v": 1, "id": 4, "type": "call", "tool": "read_input", "arguments": {}}))
        .unwrap();
    assert_eq!(read()["ok"]["structured"], "");
    drop(input);
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success());
    assert_eq!(String::from_utf8(ended.stderr).unwrap(), "this goes to standard error\n".repeat(3));
}

#[test]
fn a_program_without_network_connects_to_this_machine_only() {
    let words = ["summarize", "--text", "x", "--sample-via", "http://192.0.2.1:9/"];
    let output = Command::new(program()).args(words).env("TOOLPOST_NO_NETWORK", "1").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("PERMISSION") && text.contains("TOOLPOST_NO_NETWORK"), "{text}");
    assert_eq!(output.status.code(), Some(5));
}

/// The original's own registry on a program of ours: discover, schema, call, resource, prompt and errors.
const TOOLABLE: &str = r#"
import json, sys
from toolable.registry import ToolRegistry
path = sys.argv[1]
registry = ToolRegistry([path])
print(json.dumps({
    "discover": registry.discover(),
    "schema": registry.schema("add"),
    "call": registry.call("add", {"a": 1, "b": 2}),
    "partial": registry.call("divide", {"numbers": [1, 2], "by": [0, 1]}),
    "missing": registry.call("add", {}),
    "unknown": registry.call("nope", {}),
    "stream": registry.call("count", {"to": 1}),
    "resource": registry.fetch_resource("notes://ada/3"),
    "no_resource": registry.fetch_resource("notes://ada"),
    "prompt": registry.render_prompt("review", {"text": "x"}),
}))
"#;

#[test]
fn the_original_loads_our_program() {
    let test = "the_original_loads_our_program";
    let Some(checkout) = toolpost_testkit::recordings::toolable() else {
        println!(
            "SKIP {test}: toolable is not beside the checkout, and TOOLPOST_TOOLABLE names no directory"
        );
        return;
    };
    let python = std::env::var_os("TOOLPOST_PYTHON").unwrap_or_else(|| "python3".into());
    let output = Command::new(python)
        .args(["-c", TOOLABLE])
        .arg(program())
        .env("PYTHONPATH", checkout.join("src"))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("No module named 'pydantic'") {
        println!("SKIP {test}: Python has no pydantic");
        return;
    }
    assert!(output.status.success(), "{stderr}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["discover"]["add"], "Add two numbers.");
    assert_eq!(found["schema"]["schema"]["required"], json!(["a"]));
    assert_eq!(found["call"], json!({"status": "success", "result": {"result": 3}}));
    assert_eq!(found["partial"]["status"], "partial");
    assert_eq!(found["missing"]["error"]["code"], "MISSING_PARAM");
    assert_eq!(found["unknown"]["error"]["code"], "NOT_FOUND");
    assert_eq!(found["stream"]["error"]["message"], "This tool requires --stream flag");
    assert_eq!(found["resource"], "page 3 of ada");
    assert_eq!(found["no_resource"]["error"]["code"], "NOT_FOUND");
    assert_eq!(found["prompt"], "Review this text, in a kind tone: x");
}

/// A request of the stateless era.
#[cfg(feature = "mcp")]
fn request(id: u64, method: &str, mut params: Value) -> String {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

#[cfg(feature = "mcp")]
#[test]
fn a_program_is_a_server_of_the_model_context_protocol() {
    let mut child =
        Command::new(program()).arg("--mcp").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let call = json!({ "name": "add", "arguments": { "a": 1, "b": 2 } });
    writeln!(input, "{}", request(1, "server/discover", json!({}))).unwrap();
    writeln!(input, "{}", request(2, "tools/call", call)).unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next()["id"], 1);
    let answer = next();
    assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains('3'), "{answer}");
    drop(input);
    assert!(child.wait().unwrap().success());
    let (help, ..) = run(&["--help"]);
    assert!(help.contains("--mcp-http ADDRESS:PORT"), "{help}");
    assert_eq!(run(&["--mcp-http", "nowhere"]).2, 2);
}

#[cfg(feature = "mcp")]
#[test]
fn a_program_serves_over_http_and_says_where() {
    let mut child = Command::new(program())
        .args(["--mcp-http", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let address = url.strip_prefix("http://").unwrap().trim().strip_suffix("/mcp").unwrap().to_owned();
    let mut stream = std::net::TcpStream::connect(&address).unwrap();
    write!(stream, "GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    assert!(answer.ends_with("OK"), "{answer}");
    child.kill().unwrap();
    child.wait().unwrap();
}
