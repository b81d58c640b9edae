//! A server with tools of every kind, and a client that sends raw bytes.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines, ReadHalf,
    WriteHalf,
};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use toolpost_core::{
    Answer, Content, LogLevel, Output, ParameterType, Question, SampleRequest, ToolError, ToolSource,
    ToolSpec, tool_fn,
};
use toolpost_mcp::server::{RunningServer, Server, ServerBuilder};
use toolpost_toolbox::Toolbox;

pub(super) const MODERN: &str = "2026-07-28";
pub(super) const LEGACY: &str = "2025-11-25";
/// The timeout of every response.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);

/// Tools for every kind of response.
pub(super) fn toolbox() -> Toolbox {
    let add = ToolSpec::new("add", "Add two numbers.")
        .parameter("a", ParameterType::Integer, "The first number.")
        .parameter("b", ParameterType::Integer, "The second number.")
        .output(
            json!({ "type": "object", "properties": { "sum": { "type": "integer" } }, "required": ["sum"] }),
        );
    let greet = ToolSpec::new("greet", "Greet the user.");
    let sum = ToolSpec::new("summarize", "Let the client's model summarize.");
    let slow = ToolSpec::new("slow", "Take a while.").parameter("ms", ParameterType::Integer, "How long.");
    Toolbox::builder()
        .name("calc")
        .tool(tool_fn(add, async |args, _ctx| {
            let sum = args.decode::<i64>("a")? + args.decode::<i64>("b")?;
            Ok(Output::json(json!({ "sum": sum })))
        }))
        .tool(tool_fn(ToolSpec::new("fail", "Fail."), async |_args, _ctx| {
            Err(ToolError::not_found("the shelf is empty").suggest("Fill it."))
        }))
        .tool(tool_fn(ToolSpec::new("break", "Fail internally."), async |_args, _ctx| {
            Err(ToolError::internal("the password is hunter2"))
        }))
        .tool(tool_fn(ToolSpec::new("list", "A list."), async |_args, _ctx| Ok(Output::json(json!([1, 2])))))
        .tool(tool_fn(ToolSpec::new("report", "Report progress and log."), async |_args, ctx| {
            ctx.log(LogLevel::Info, "begun");
            ctx.progress("half", 50.0);
            ctx.progress("again", 10.0);
            ctx.log(LogLevel::Debug, "detail");
            Ok(Output::text("reported"))
        }))
        .tool(tool_fn(greet, async |_args, ctx| {
            let schema = json!({ "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"] });
            match ctx.ask(Question::with_schema("What is your name?", schema).named("user_name")).await? {
                Answer::Given { value } => {
                    Ok(Output::text(format!("Hello, {}", value["name"].as_str().unwrap_or_default())))
                }
                Answer::Declined => Ok(Output::text("Hello, stranger")),
            }
        }))
        .tool(tool_fn(sum, async |_args, ctx| {
            let sample = ctx.sample(SampleRequest::new("Summarize.")).await?;
            Ok(Output::default().with_content(Content::text(sample.content)))
        }))
        .tool(tool_fn(slow, async |args, ctx| {
            let ms = args.decode::<u64>("ms")?;
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(ms)) => Ok(Output::text("done")),
                () = ctx.cancelled() => Err(ToolError::cancelled("stopped")),
            }
        }))
        .build()
        .unwrap()
}

pub(super) fn builder() -> ServerBuilder {
    Server::builder(Arc::new(toolbox())).name("calc").version("1.2")
}

pub(super) fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

pub(super) async fn serve(change: impl FnOnce(ServerBuilder) -> ServerBuilder) -> RunningServer {
    change(builder()).build().unwrap().http(loopback()).await.unwrap()
}

pub(super) async fn serve_source(
    source: impl ToolSource + 'static,
    change: impl FnOnce(ServerBuilder) -> ServerBuilder,
) -> RunningServer {
    change(Server::builder(Arc::new(source)).name("calc")).build().unwrap().http(loopback()).await.unwrap()
}

/// A response over HTTP.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    head: String,
    pub(super) body: String,
}

impl Response {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The messages: one JSON value, or the data of events.
    pub(super) fn messages(&self) -> Vec<Value> {
        if self.header("content-type") == Some("application/json") {
            return vec![serde_json::from_str(&self.body).unwrap()];
        }
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim);
        data.filter_map(|data| serde_json::from_str(data).ok()).collect()
    }

    /// The last message.
    pub(super) fn message(&self) -> Value {
        self.messages().pop().unwrap_or_else(|| panic!("no message in {self:?}"))
    }
}

/// Sends bytes and reads the response to its end.
pub(super) async fn raw(address: SocketAddr, request: &[u8]) -> Response {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut response = Vec::new();
    let read = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut response)).await;
    read.expect("a response in time").ok();
    let response = String::from_utf8(response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Response { status, head: head.to_owned(), body: body.to_owned() }
}

pub(super) async fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Response {
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        write!(head, "Host: {address}\r\n").unwrap();
    }
    for (name, value) in headers {
        write!(head, "{name}: {value}\r\n").unwrap();
    }
    raw(address, format!("{head}\r\n{body}").as_bytes()).await
}

/// The JSON of `GET /status`.
pub(super) async fn status(address: SocketAddr) -> Value {
    request(address, "GET", "/status", &[], "").await.message()
}

/// Waits until a call runs.
pub(super) async fn call_runs(address: SocketAddr) {
    let runs = async || status(address).await["calls"]["running"] == 1;
    toolpost_testkit::eventually("a call runs", runs).await;
}

/// A request of version 2026-07-28, with the metadata that it requires.
pub(super) fn modern(id: u64, method: &str, mut params: Value, capabilities: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = MODERN.into();
    params["_meta"]["io.modelcontextprotocol/clientInfo"] = json!({ "name": "test", "version": "1" });
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

/// The headers that repeat parts of a modern message.
fn modern_headers(message: &Value) -> Vec<(&str, &str)> {
    let params = &message["params"];
    let name = ["name", "uri", "taskId"].iter().find_map(|key| params.get(*key)).and_then(Value::as_str);
    let headers = [
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("MCP-Protocol-Version", MODERN),
        ("Mcp-Method", message["method"].as_str().unwrap_or_default()),
    ];
    headers.into_iter().chain(name.map(|name| ("Mcp-Name", name))).collect()
}

/// Posts a modern message.
pub(super) async fn post_with(address: SocketAddr, message: &Value, headers: &[(&str, &str)]) -> Response {
    let headers = [&modern_headers(message), headers].concat();
    request(address, "POST", "/mcp", &headers, &message.to_string()).await
}

pub(super) async fn post(address: SocketAddr, method: &str, params: Value, capabilities: Value) -> Response {
    post_with(address, &modern(1, method, params, capabilities), &[]).await
}

/// Calls a tool as a modern client without capabilities.
pub(super) async fn call(address: SocketAddr, tool: &str, arguments: Value) -> Value {
    post(address, "tools/call", json!({ "name": tool, "arguments": arguments }), json!({})).await.message()
}

/// The first text of a call's result.
pub(super) fn text(message: &Value) -> &Value {
    &message["result"]["content"][0]["text"]
}

/// The code of the Toolpost error in a call's result.
pub(super) fn error_code(message: &Value) -> &Value {
    &message["result"]["_meta"]["toolpost/error"]["code"]
}

/// Posts a message of version 2025-11-25.
pub(super) async fn post_legacy(
    address: SocketAddr,
    session: Option<&str>,
    message: &Value,
    headers: &[(&str, &str)],
) -> Response {
    let mut all = vec![
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("MCP-Protocol-Version", LEGACY),
    ];
    all.extend(session.map(|session| ("Mcp-Session-Id", session)));
    all.extend(headers);
    request(address, "POST", "/mcp", &all, &message.to_string()).await
}

pub(super) fn initialize(version: &str, capabilities: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": version, "capabilities": capabilities, "clientInfo": { "name": "test", "version": "1" },
    } })
}

pub(super) fn initialized() -> Value {
    json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })
}

/// Begins a legacy session and returns its id.
pub(super) async fn begin_session(address: SocketAddr, headers: &[(&str, &str)]) -> String {
    let response = post_legacy(address, None, &initialize(LEGACY, &json!({})), headers).await;
    assert_eq!(response.message()["result"]["serverInfo"]["name"], "calc", "{response:?}");
    let session = response.header("mcp-session-id").unwrap().to_owned();
    assert_eq!(post_legacy(address, Some(&session), &initialized(), headers).await.status, 202);
    session
}

/// An open event stream.
pub(super) struct EventStream {
    stream: TcpStream,
    received: Vec<u8>,
}

impl EventStream {
    /// Subscribes as a modern client.
    pub(super) async fn modern(address: SocketAddr, message: &Value) -> Self {
        let (mut head, body) = (format!("POST /mcp HTTP/1.1\r\nHost: {address}\r\n"), message.to_string());
        for (name, value) in modern_headers(message) {
            write!(head, "{name}: {value}\r\n").unwrap();
        }
        let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        let mut stream = Self::open(address, &request).await;
        stream.wait_for("notifications/subscriptions/acknowledged").await;
        stream
    }

    /// Opens the stream of a legacy session.
    pub(super) async fn legacy(address: SocketAddr, session: &str) -> Self {
        let head = format!(
            "GET /mcp HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\nMcp-Session-Id: {session}\r\n\r\n"
        );
        let mut stream = Self::open(address, &head).await;
        stream.wait_for("200 OK").await;
        stream
    }

    async fn open(address: SocketAddr, request: &str) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        Self { stream, received: Vec::new() }
    }

    /// Reads until a line with a text is complete; returns and forgets everything up to there.
    pub(super) async fn wait_for(&mut self, expected: &str) -> String {
        let is_complete = |received: &[u8]| {
            let received = String::from_utf8_lossy(received);
            received.split_once(expected).is_some_and(|(_, rest)| rest.contains('\n'))
        };
        let waiting = async {
            while !is_complete(&self.received) {
                assert_ne!(
                    self.stream.read_buf(&mut self.received).await.unwrap(),
                    0,
                    "{expected}: it ended"
                );
            }
        };
        let arrived = tokio::time::timeout(TIMEOUT, waiting).await;
        let received = String::from_utf8_lossy(&std::mem::take(&mut self.received)).into_owned();
        assert!(arrived.is_ok(), "{expected} is not in {received}");
        received
    }
}

/// A client of one server over a pair of streams.
pub(super) struct Conversation {
    input: WriteHalf<DuplexStream>,
    output: Lines<BufReader<ReadHalf<DuplexStream>>>,
    serving: JoinHandle<Result<(), ToolError>>,
}

impl Conversation {
    pub(super) fn open(server: &Server) -> Self {
        Self::with_capacity(server, 1 << 16)
    }

    /// `capacity` is the number of bytes that the server may write ahead.
    pub(super) fn with_capacity(server: &Server, capacity: usize) -> Self {
        let (ours, theirs) = tokio::io::duplex(capacity);
        let (input, output) = tokio::io::split(theirs);
        let server = server.clone();
        let serving = tokio::spawn(async move { server.serve_streams(input, output).await });
        let (read, input) = tokio::io::split(ours);
        Self { input, output: BufReader::new(read).lines(), serving }
    }

    pub(super) async fn send(&mut self, message: impl std::fmt::Display) {
        self.input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    pub(super) async fn next(&mut self) -> Value {
        let line = tokio::time::timeout(TIMEOUT, self.output.next_line()).await;
        serde_json::from_str(&line.expect("a message in time").unwrap().unwrap()).unwrap()
    }

    /// The next responses, in the order of their ids.
    pub(super) async fn responses(&mut self, count: usize) -> Vec<Value> {
        let mut responses = Vec::new();
        while responses.len() < count {
            responses.push(self.next().await);
        }
        responses.sort_by_key(|response| response["id"].as_u64());
        responses
    }

    /// Waits until the server ends, with the streams still open.
    pub(super) async fn ended(&mut self) {
        let ended = tokio::time::timeout(TIMEOUT, &mut self.serving).await;
        ended.expect("the server ends").unwrap().unwrap();
    }

    /// Closes the streams; the server must end without an error.
    pub(super) async fn close(self) {
        let Self { input, output, serving } = self;
        drop((input, output));
        serving.await.unwrap().unwrap();
    }
}
