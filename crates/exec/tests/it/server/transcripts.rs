//! Sessions, sampling and notifications, line by line.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;

use serde_json::{Value, json};

use super::program::{Running, run};
use super::table::fits;
use super::tools::toolbox;

/// A session whose caller has written all lines before it began.
fn session(tool: &str, lines: &[&str], expected: &[Value], status: u8) {
    let input = std::io::Cursor::new(lines.join("\n").into_bytes());
    let ended = run(toolbox(), &[tool, "--session"], input);
    let found = Value::Array(ended.lines());
    assert!(fits(&json!(expected), &found), "{tool} {lines:?}: {found}");
    assert_eq!(ended.status, status, "{tool} {lines:?}");
}

#[test]
fn sessions_are_lines_both_ways() {
    let start = json!({"type": "session_start", "message": "Guess.", "prompt": "> "});
    let more = json!({"type": "awaiting_input", "prompt": "> ", "message": "More."});
    let less = json!({"type": "awaiting_input", "prompt": "> ", "message": "Less."});
    let end = json!({"type": "session_end", "status": "success"});
    let won = |tries| json!({"status": "success", "result": {"tries": tries}});
    let over = json!({"status": "success"});
    session("guess", &[r#"{"value":7}"#], &[start.clone(), end.clone(), won(1)], 0);
    // Empty lines are none, and each of the usual keys holds an answer.
    let lines = [r#"{"value":3}"#, "", r#"{"input":9}"#, r#"{"answer":7}"#];
    session("guess", &lines, &[start.clone(), more.clone(), less, end.clone(), won(3)], 0);
    session("guess", &[r#"{"action":"quit"}"#], &[start.clone(), end.clone(), over.clone()], 0);
    // The end of the input ends the session.
    session("guess", &[r#"{"value":3}"#], &[start.clone(), more, end.clone(), over.clone()], 0);
    session("guess", &[], &[start.clone(), end, over], 0);
    for bad in ["garbage", "[1]", "7"] {
        let refused = json!({"status": "error", "error": {"code": "INVALID_INPUT", "...": 1}});
        session("guess", &[bad], &[start.clone(), refused], 1);
    }
}

#[test]
fn a_session_ends_with_its_input() {
    let ended = run(toolbox(), &["stubborn", "--session"], std::io::empty());
    let lines = ended.lines();
    assert!(lines.len() <= 4, "{lines:?}");
    assert_eq!(lines.last().unwrap()["error"]["code"], "TIMEOUT", "{lines:?}");
    assert_eq!(ended.status, 130);
}

#[test]
fn a_form_has_a_schema_and_takes_an_object() {
    let start = json!({"type": "session_start", "message": "Fill in.", "prompt": "> ",
        "schema": {"type": "object", "properties": {"value": {"type": "string"}}}});
    let end = json!({"type": "session_end", "status": "success"});
    let filled = json!({"status": "success", "result": {"value": "x"}});
    session("form", &[r#"{"value":"x"}"#], &[start.clone(), end, filled], 0);
    let refused = json!({"status": "error", "error": {"code": "PRECONDITION", "...": 1}});
    session("form", &[r#"{"action":"quit"}"#], &[start, refused], 1);
}

#[test]
fn prompts_are_completed_over_standard_input() {
    let mut program = Running::start(toolbox(), &["summarize", "--text", "x", "--sample-via", "stdin"]);
    let request = program.read();
    let expected = json!({"type": "sample_request", "id": "*", "prompt": "Short: x", "max_tokens": 1000,
        "system": "Be brief.", "temperature": 0.5, "stop_sequences": ["END"]});
    assert!(fits(&expected, &request), "{request}");
    let id = request["id"].as_str().unwrap();
    assert!(id.len() == 8 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    // What is not the answer is dropped.
    program.write("garbage");
    program.write(json!({"type": "sample_response", "id": "00000000x", "content": "wrong"}));
    program.write(json!({"type": "other", "id": id, "content": "wrong"}));
    program.write(json!({"type": "sample_response", "id": id, "content": "right"}));
    assert_eq!(program.read(), json!({"status": "success", "result": {"result": "right"}}));
    assert_eq!(program.end().status, 0);
}

#[test]
fn a_prompt_without_an_answer_is_an_error() {
    let ended = run(toolbox(), &["summarize", "--text", "x", "--sample-via", "stdin"], std::io::empty());
    assert_eq!(ended.lines()[1]["error"]["code"], "DEPENDENCY");
    assert_eq!(ended.status, 4);
}

/// Answers one POST and gives what was sent.
fn server(answer: &'static str) -> (String, std::thread::JoinHandle<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/complete?x=1", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            reader.read_line(&mut head).unwrap();
        }
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
        (head, serde_json::from_slice(&body).unwrap())
    });
    (address, thread)
}

#[test]
fn prompts_are_completed_over_http() {
    let (address, thread) = server(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 21\r\n\r\n{\"content\":\"shorter\"}",
    );
    let ended = run(toolbox(), &["summarize", "--text", "x", "--sample-via", &address], std::io::empty());
    assert_eq!(ended.lines(), [json!({"status": "success", "result": {"result": "shorter"}})]);
    let (head, body) = thread.join().unwrap();
    assert!(head.starts_with("POST /complete?x=1 HTTP/1.1\r\n"), "{head}");
    assert_eq!(body["type"], "sample_request");
    assert_eq!(body["prompt"], "Short: x");

    for answer in ["HTTP/1.1 500 No\r\n\r\n", "garbage\r\n", "HTTP/1.1 200 OK\r\n\r\n{}", ""] {
        let (address, thread) = server(answer);
        let ended = run(toolbox(), &["summarize", "--text", "x", "--sample-via", &address], std::io::empty());
        assert_eq!(ended.lines()[0]["error"]["code"], "DEPENDENCY", "{answer}: {ended:?}");
        assert_eq!(ended.status, 4);
        thread.join().unwrap();
    }
    // The listener is closed.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = format!("http://{closed}/");
    let ended = run(toolbox(), &["summarize", "--text", "x", "--sample-via", &address], std::io::empty());
    assert_eq!(ended.lines()[0]["error"]["code"], "DEPENDENCY", "{ended:?}");
}

#[test]
fn a_closed_reader_ends_the_program() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _bytes: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let streams = toolpost_exec::server::Streams {
        input: Box::new(std::io::empty()),
        output: Box::new(Closed),
        errors: Box::new(std::io::sink()),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let program = toolpost_exec::server::Program::new("demo", "1");
    let words = ["count", "--to", "1000", "--stream"].iter().map(Into::into).collect();
    let served = toolpost_exec::server::serve(std::sync::Arc::new(toolbox()), program, words, streams);
    assert_eq!(runtime.block_on(served), 1);
}
