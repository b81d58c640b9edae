//! The one client that all of them are measured with.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::servers::{Contestant, Era};

const STATELESS: &str = "2026-07-28";
const SESSION: &str = "2025-11-25";
/// The time that the slowest of them may take to its first answer.
const START: Duration = Duration::from_mins(1);

fn initialize() -> Value {
    json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": SESSION, "capabilities": {}, "clientInfo": { "name": "bench", "version": "1" } } })
}

/// A call of the tool; `id` says which one.
fn add(era: Era, id: u64) -> Value {
    let mut params = json!({ "name": "add", "arguments": { "a": 20, "b": 22 } });
    if era == Era::Stateless {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": STATELESS,
            "io.modelcontextprotocol/clientInfo": { "name": "bench", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
    }
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
}

/// A server over HTTP, in a process of its own, until it is dropped.
pub(crate) struct Started {
    child: Child,
    pub(crate) address: SocketAddr,
    era: Era,
    /// From the start of the process to its first answer.
    pub(crate) ready: Duration,
}

impl Started {
    /// Starts one; nothing where it is not installed.
    pub(crate) fn new(contestant: Contestant) -> Option<Self> {
        // Free a moment ago; nobody else takes ports here.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = contestant.command(Some(address))?;
        let begun = Instant::now();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut started = Self { child, address, era: contestant.era(), ready: Duration::ZERO };
        while TcpStream::connect(address).is_err() {
            assert!(begun.elapsed() < START, "{} did not start", contestant.name());
            std::thread::sleep(Duration::from_micros(200));
        }
        started.client().call();
        started.ready = begun.elapsed();
        Some(started)
    }

    /// Its resident memory, in MiB.
    pub(crate) fn memory(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").trim().parse::<f64>().unwrap() / 1024.0
    }

    /// The processor time that its threads have used, in µs.
    pub(crate) fn processor(&self) -> f64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let nanoseconds: f64 = tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok())
            .filter_map(|text| text.split(' ').next()?.parse::<f64>().ok())
            .sum();
        nanoseconds / 1e3
    }

    /// A client whose connection stays, ready to call.
    pub(crate) fn client(&self) -> Client {
        match self.era {
            Era::Stateless => {
                let headers = format!(
                    "MCP-Protocol-Version: {STATELESS}\r\nMcp-Method: tools/call\r\nMcp-Name: add\r\n"
                );
                Client::new(self.address, &headers, &add(self.era, 1))
            }
            Era::Session => {
                let mut client = Client::beginning(self.address);
                let text = String::from_utf8_lossy(client.send()).into_owned();
                let mut headers = text.lines().filter_map(|line| line.split_once(": "));
                let id = headers.find(|(name, _)| name.eq_ignore_ascii_case("mcp-session-id"));
                let id = id.map(|(_, id)| id.trim().to_owned()).unwrap();
                let headers = format!("MCP-Protocol-Version: {SESSION}\r\nMcp-Session-Id: {id}\r\n");
                let begun = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
                client.request = request(self.address, &headers, &begun);
                client.send();
                client.request = request(self.address, &headers, &add(self.era, 1));
                client
            }
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn request(address: SocketAddr, headers: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// A client that keeps its connection.
pub(crate) struct Client {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Client {
    fn new(address: SocketAddr, headers: &str, body: &Value) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(START)).unwrap();
        Self { stream, request: request(address, headers, body), answer: Vec::new() }
    }

    /// A client whose every request begins a session.
    pub(crate) fn beginning(address: SocketAddr) -> Self {
        Self::new(address, &format!("MCP-Protocol-Version: {SESSION}\r\n"), &initialize())
    }

    /// One request and its whole answer.
    pub(crate) fn send(&mut self) -> &[u8] {
        self.stream.write_all(&self.request).unwrap();
        self.answer.clear();
        let mut piece = [0; 16 * 1024];
        loop {
            let read = self.stream.read(&mut piece).unwrap();
            assert_ne!(read, 0, "the server went away: {}", String::from_utf8_lossy(&self.answer));
            self.answer.extend_from_slice(piece.get(..read).unwrap());
            if is_whole(&self.answer) {
                return &self.answer;
            }
        }
    }

    /// One call, whose result is looked at.
    pub(crate) fn call(&mut self) {
        let answer = self.send();
        let is_right = answer.windows(8).any(|window| window == b"\"sum\":42");
        assert!(is_right, "{}", String::from_utf8_lossy(answer));
    }
}

/// Whether all of an answer is there.
fn is_whole(answer: &[u8]) -> bool {
    let Some(head) = answer.windows(4).position(|window| window == b"\r\n\r\n").map(|place| place + 4) else {
        return false;
    };
    let text = String::from_utf8_lossy(answer.get(..head).unwrap_or_default()).to_ascii_lowercase();
    match text.split_once("content-length: ") {
        Some((_, rest)) => {
            let length: usize = rest.split_once("\r\n").and_then(|(number, _)| number.parse().ok()).unwrap();
            answer.len() >= head + length
        }
        None if text.contains("transfer-encoding: chunked") => answer.ends_with(b"0\r\n\r\n"),
        // Such as 202 without a body.
        None => true,
    }
}

/// A server over its standard streams, until it is dropped.
pub(crate) struct Piped {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    line: String,
    sent: u64,
}

impl Piped {
    /// Starts one and begins a session; nothing where it is not installed.
    pub(crate) fn new(contestant: Contestant) -> Option<Self> {
        let mut command = contestant.command(None)?;
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::with_capacity(64 << 10, child.stdout.take().unwrap());
        let mut piped = Self { child, input, output, line: String::new(), sent: 0 };
        piped.write(&format!("{}\n", initialize()));
        piped.read();
        piped.write("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
        Some(piped)
    }

    fn write(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).unwrap();
    }

    fn read(&mut self) {
        self.line.clear();
        assert_ne!(self.output.read_line(&mut self.line).unwrap(), 0, "the server went away");
    }

    fn ask(&mut self) {
        self.sent += 1;
        let line = format!("{}\n", add(Era::Session, self.sent));
        self.write(&line);
    }

    fn answer(&mut self) {
        self.read();
        assert!(self.line.contains("\"sum\":42"), "{}", self.line);
    }

    /// Calls a second, with so many under way.
    pub(crate) fn rate(&mut self, window: usize, time: Duration) -> f64 {
        let begun = Instant::now();
        let mut calls = 0_u64;
        for _ in 0..window {
            self.ask();
        }
        while begun.elapsed() < time {
            self.answer();
            self.ask();
            calls += 1;
        }
        let rate = calls as f64 / begun.elapsed().as_secs_f64();
        for _ in 0..window {
            self.answer();
        }
        rate
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
