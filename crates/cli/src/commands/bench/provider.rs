//! The loopback provider of the loop suite: instant answers in the format of Chat Completions.
//!
//! The number of results in a request tells how far a conversation is. Every call has other arguments.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};

/// Calls of one conversation; the request after the last one is answered with a text.
pub(super) const CALLS: usize = 10;

/// Starts the provider and returns its base URL. It runs as long as this process.
pub(super) fn start() -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/v1", listener.local_addr()?);
    std::thread::Builder::new().name("provider".to_owned()).spawn(move || {
        for stream in listener.incoming().flatten() {
            // A subject closes its connections at its end.
            std::thread::spawn(move || drop(serve(stream)));
        }
    })?;
    Ok(url)
}

fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    loop {
        let mut length = 0;
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line.trim_end().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or_default();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let body = String::from_utf8_lossy(&body);
        let is_stream = body.contains("\"stream\":true") || body.contains("\"stream\": true");
        let answer = answer(body.matches("\"tool_call_id\"").count(), is_stream);
        let (kind, text) = if is_stream {
            ("text/event-stream", format!("data: {answer}\n\ndata: [DONE]\n\n"))
        } else {
            ("application/json", answer.to_string())
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{text}",
            text.len()
        );
        stream.write_all(head.as_bytes())?;
    }
}

fn answer(results: usize, is_stream: bool) -> Value {
    let (message, reason) = if results < CALLS {
        let arguments = json!({ "a": results, "b": 3 }).to_string();
        let call = json!({ "index": 0, "id": format!("call_{results}"), "type": "function",
            "function": { "name": "add", "arguments": arguments } });
        (json!({ "role": "assistant", "content": null, "tool_calls": [call] }), "tool_calls")
    } else {
        (json!({ "role": "assistant", "content": "done" }), "stop")
    };
    let (object, field) =
        if is_stream { ("chat.completion.chunk", "delta") } else { ("chat.completion", "message") };
    json!({ "id": "c1", "object": object, "created": 1, "model": "x",
        "usage": { "prompt_tokens": 10, "completion_tokens": 9, "total_tokens": 19 },
        "choices": [{ "index": 0, field: message, "finish_reason": reason }] })
}
