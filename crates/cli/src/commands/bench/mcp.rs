//! The client that measures every MCP server: protocol 2025-11-25 over standard streams and over HTTP.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::process::{Process, Watch};

const PROTOCOL: &str = "2025-11-25";
/// Calls in flight, and connections over HTTP.
const AT_ONCE: usize = 16;
/// The time of one load.
const LOAD: Duration = Duration::from_secs(1);
/// The time limit of an answer over HTTP.
const ANSWER: Duration = Duration::from_secs(10);

fn initialize() -> Value {
    json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": { "protocolVersion": PROTOCOL,
        "capabilities": {}, "clientInfo": { "name": "bench", "version": "1" } } })
}

fn initialized() -> Value {
    json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })
}

fn call(id: u64) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": { "name": "add", "arguments": { "a": 20, "b": 22 } } })
}

/// Whether an answer has the sum, with or without a space.
fn is_right(answer: &[u8]) -> bool {
    [&b"\"sum\":42"[..], b"\"sum\": 42"].iter().any(|sum| answer.windows(sum.len()).any(|part| part == *sum))
}

fn check(answer: &[u8]) -> Result<(), String> {
    if is_right(answer) {
        return Ok(());
    }
    Err(format!("wrong answer: {}", crate::style::one_line(&String::from_utf8_lossy(answer), 200)))
}

/// Measures a server over standard streams: start in ms, calls per second, processor µs of a call.
pub(super) fn stdio(watch: &Watch, words: &[OsString]) -> Result<Vec<(&'static str, f64)>, String> {
    let mut server = Process::start(watch, words)?;
    let mut line = String::new();
    server.write(format!("{}\n", initialize()).as_bytes())?;
    server.line(&mut line)?;
    server.write(format!("{}\n{}\n", initialized(), call(1)).as_bytes())?;
    answer(&mut server, &mut line)?;
    let start = server.age();
    let mut ids = 2..;
    let mut next = || ids.next().map(|id| format!("{}\n", call(id))).unwrap_or_default();
    for _ in 0..AT_ONCE {
        server.write(next().as_bytes())?;
    }
    let (before, begun, mut calls) = (processor(server.id()), Instant::now(), 0_u32);
    while begun.elapsed() < LOAD {
        answer(&mut server, &mut line)?;
        server.write(next().as_bytes())?;
        calls += 1;
    }
    let (time, after) = (begun.elapsed(), processor(server.id()));
    let mut figures =
        vec![("mcp-start", start.as_secs_f64() * 1e3), ("mcp-stdio", f64::from(calls) / time.as_secs_f64())];
    if let (Some(before), Some(after)) = (before, after) {
        figures.push(("mcp-cpu", (after - before) / 1e3 / f64::from(calls)));
    }
    Ok(figures)
}

/// Reads the answer of a call; other messages, such as logs, are skipped.
fn answer(server: &mut Process, line: &mut String) -> Result<(), String> {
    loop {
        server.line(line)?;
        if !line.contains("\"method\"") {
            return check(line.as_bytes());
        }
    }
}

/// The processor time of a process's live threads, in nanoseconds; Linux only.
fn processor(id: u32) -> Option<f64> {
    let threads = std::fs::read_dir(format!("/proc/{id}/task")).ok()?;
    let times = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    Some(times.sum())
}

/// Measures a server over HTTP: calls per second. `words` makes the command line for a port.
pub(super) fn http(
    watch: &Watch,
    words: impl Fn(&str) -> Vec<OsString>,
) -> Result<Vec<(&'static str, f64)>, String> {
    let wrong = |error: std::io::Error| error.to_string();
    let listener = TcpListener::bind("127.0.0.1:0").map_err(wrong)?;
    let address = listener.local_addr().map_err(wrong)?;
    drop(listener);
    let mut server = Process::start(watch, &words(&address.port().to_string()))?;
    while TcpStream::connect(address).is_err() {
        if !server.is_running() {
            return Err(server.failure());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let clients = (0..AT_ONCE).map(|_| Client::new(address)).collect::<Result<Vec<_>, _>>();
    let clients = match clients {
        Ok(clients) => clients,
        Err(error) if server.is_running() => return Err(error),
        Err(_) => return Err(server.failure()),
    };
    let begun = Instant::now();
    let calls = std::thread::scope(|scope| {
        let load = |mut client: Client| {
            let mut calls = 0_u32;
            while begun.elapsed() < LOAD {
                check(client.send()?)?;
                calls += 1;
            }
            Ok::<u32, String>(calls)
        };
        let threads: Vec<_> = clients.into_iter().map(|client| scope.spawn(move || load(client))).collect();
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a client panicked".into())));
        ended.sum::<Result<u32, String>>()
    })?;
    Ok(vec![("mcp-http", f64::from(calls) / begun.elapsed().as_secs_f64())])
}

/// A client over HTTP with a session and a connection.
struct Client {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Client {
    fn new(address: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
        let set = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(ANSWER)));
        set.map_err(|error| error.to_string())?;
        let mut client = Self { stream, request: request(address, "", &initialize()), answer: Vec::new() };
        let text = String::from_utf8_lossy(client.send()?).into_owned();
        let mut headers = text.lines().filter_map(|line| line.split_once(": "));
        let session = headers.find(|(name, _)| name.eq_ignore_ascii_case("mcp-session-id"));
        let (_, session) = session.ok_or("the server gave no session ID")?;
        let session = format!("MCP-Protocol-Version: {PROTOCOL}\r\nMcp-Session-Id: {}\r\n", session.trim());
        client.request = request(address, &session, &initialized());
        client.send()?;
        client.request = request(address, &session, &call(1));
        Ok(client)
    }

    /// Sends the request and reads the whole answer.
    fn send(&mut self) -> Result<&[u8], String> {
        self.stream.write_all(&self.request).map_err(|error| error.to_string())?;
        self.answer.clear();
        let mut piece = [0; 16 << 10];
        while !is_whole(&self.answer) {
            let length = self.stream.read(&mut piece).map_err(|error| error.to_string())?;
            if length == 0 {
                return Err("the server closed a connection".to_owned());
            }
            self.answer.extend_from_slice(&piece[..length]);
        }
        Ok(&self.answer)
    }
}

fn request(address: SocketAddr, headers: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    head.into_bytes()
}

/// Whether an answer is complete.
fn is_whole(answer: &[u8]) -> bool {
    let Some(head) = answer.windows(4).position(|part| part == b"\r\n\r\n").map(|place| place + 4) else {
        return false;
    };
    let text = String::from_utf8_lossy(&answer[..head]).to_ascii_lowercase();
    if text.contains("transfer-encoding: chunked") {
        return answer.ends_with(b"0\r\n\r\n");
    }
    let length =
        text.split_once("content-length:").and_then(|(_, rest)| rest.lines().next()?.trim().parse().ok());
    answer.len() >= head + length.unwrap_or(0_usize)
}
