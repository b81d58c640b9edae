//! A small server, and a client that knows only bytes.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use toolpost_core::{
    Answer, Content, LogLevel, Output, ParameterType, Question, SampleRequest, ToolError, ToolSpec, tool_fn,
};
use toolpost_mcp::server::{RunningServer, Server, ServerBuilder};
use toolpost_toolbox::Toolbox;

pub(super) const MODERN: &str = "2026-07-28";
pub(super) const LEGACY: &str = "2025-11-25";

/// Tools for every kind of answer.
pub(super) fn toolbox() -> Toolbox {
    let add = ToolSpec::new("add", "Add two numbers.")
        .parameter("a", ParameterType::Integer, "One.")
        .parameter("b", ParameterType::Integer, "The other.")
        .output(
            json!({ "type": "object", "properties": { "sum": { "type": "integer" } }, "required": ["sum"] }),
        );
    let greet = ToolSpec::new("greet", "Greet whoever is there.");
    let sum = ToolSpec::new("summarise", "Let the client's model summarise.");
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
        .tool(tool_fn(ToolSpec::new("break", "Break inside."), async |_args, _ctx| {
            Err(ToolError::internal("the password is hunter2"))
        }))
        .tool(tool_fn(ToolSpec::new("list", "A list."), async |_args, _ctx| Ok(Output::json(json!([1, 2])))))
        .tool(tool_fn(ToolSpec::new("tell", "Tell what it does."), async |_args, ctx| {
            ctx.log(LogLevel::Info, "begun");
            ctx.progress("half", 50.0);
            ctx.progress("again", 10.0);
            ctx.log(LogLevel::Debug, "detail");
            Ok(Output::text("told"))
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
            let sample = ctx.sample(SampleRequest::new("Summarise.")).await?;
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

pub(super) async fn serve(change: impl FnOnce(ServerBuilder) -> ServerBuilder) -> RunningServer {
    change(builder()).build().unwrap().http("127.0.0.1:0".parse().unwrap()).await.unwrap()
}

/// An answer over HTTP.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl Answered {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The messages: one JSON, or the data of events.
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

/// Sends bytes and reads what comes until the end.
pub(super) async fn raw(address: SocketAddr, request: &[u8]) -> Answered {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
    read.expect("an answer in time").ok();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answered { status, head: head.to_owned(), body: body.to_owned() }
}

pub(super) async fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answered {
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

/// One request of the stateless era, with what such a client always says.
pub(super) fn modern(id: u64, method: &str, mut params: Value, capabilities: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = MODERN.into();
    params["_meta"]["io.modelcontextprotocol/clientInfo"] = json!({ "name": "test", "version": "1" });
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

/// Posts a message of the stateless era.
pub(super) async fn post_with(address: SocketAddr, message: &Value, more: &[(&str, &str)]) -> Answered {
    let params = &message["params"];
    let name = ["name", "uri", "taskId"]
        .iter()
        .find_map(|key| params.get(*key))
        .and_then(Value::as_str)
        .map(str::to_owned);
    let mut headers = vec![
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("MCP-Protocol-Version", MODERN),
        ("Mcp-Method", message["method"].as_str().unwrap_or_default()),
    ];
    headers.extend(name.as_deref().map(|name| ("Mcp-Name", name)));
    headers.extend(more);
    request(address, "POST", "/mcp", &headers, &message.to_string()).await
}

pub(super) async fn post(address: SocketAddr, method: &str, params: Value, capabilities: Value) -> Answered {
    post_with(address, &modern(1, method, params, capabilities), &[]).await
}

/// Posts a message of the older era.
pub(super) async fn post_legacy(
    address: SocketAddr,
    session: Option<&str>,
    message: &Value,
    more: &[(&str, &str)],
) -> Answered {
    let mut headers = vec![
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("MCP-Protocol-Version", LEGACY),
    ];
    headers.extend(session.map(|session| ("Mcp-Session-Id", session)));
    headers.extend(more);
    request(address, "POST", "/mcp", &headers, &message.to_string()).await
}

/// Begins a session, and gives its name.
pub(super) async fn begin_session(address: SocketAddr, capabilities: Value, more: &[(&str, &str)]) -> String {
    let params = json!({
        "protocolVersion": LEGACY, "capabilities": capabilities, "clientInfo": { "name": "test", "version": "1" },
    });
    let initialize = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
    let answer = post_legacy(address, None, &initialize, more).await;
    assert_eq!(answer.message()["result"]["serverInfo"]["name"], "calc", "{answer:?}");
    let session = answer.header("mcp-session-id").unwrap().to_owned();
    let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    assert_eq!(post_legacy(address, Some(&session), &initialized, more).await.status, 202);
    session
}
