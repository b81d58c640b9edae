//! Servers over WebSocket: our own and hostile ones.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use toolpost_core::{
    Annotations, Answer, Call, Code, Output, ParameterType, Question, Secret, ToolSource as _, ToolSpec,
    tool_fn,
};
use toolpost_mcp::client::{Client, Endpoint};
use toolpost_mcp::server::{RunningServer, Server};
use toolpost_testkit::{MemoryPort, eventually};
use toolpost_toolbox::Toolbox;

use super::support::{call, call_with};

async fn serve(address: &str) -> RunningServer {
    let double = ToolSpec::new("double", "Double a number.")
        .parameter("number", ParameterType::Integer, "The number.")
        .annotations(Annotations { idempotent: true, ..Annotations::default() });
    let double = tool_fn(double, async |args, ctx| {
        ctx.progress("half", 50.0);
        Ok(Output::json((args.decode::<i64>("number")? * 2).into()))
    });
    let ask = tool_fn(ToolSpec::new("ask", "Ask."), async |_, ctx| {
        let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
        match ctx.ask(Question::with_schema("Which?", schema)).await? {
            Answer::Given { value } => Ok(Output::json(value)),
            Answer::Declined => Ok(Output::text("declined")),
        }
    });
    let toolbox = Toolbox::builder().tool(double).tool(ask).build().unwrap();
    let server = Server::builder(Arc::new(toolbox)).bearer(Secret::new("hunter2hunter2")).build().unwrap();
    server.http(address.parse().unwrap()).await.unwrap()
}

fn endpoint(running: &RunningServer) -> Endpoint {
    let headers = vec![("Authorization".to_owned(), Secret::new("Bearer hunter2hunter2"))];
    Endpoint::WebSocket { url: running.websocket_url(), headers }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_carries_calls_progress_and_questions() {
    let running = serve("127.0.0.1:0").await;
    let without = Endpoint::WebSocket { url: running.websocket_url(), headers: Vec::new() };
    let error = Client::builder(without).connect().await.unwrap_err();
    assert_eq!(
        (error.code(), error.context().get("unauthorized")),
        (Code::Permission, Some(&json!(true))),
        "{error}"
    );
    let client = Client::builder(endpoint(&running)).connect().await.unwrap();
    assert!(!format!("{client:?} {error:?}").contains("hunter2"));
    let calls = (0..20).map(|number| call(&client, "double", json!({ "number": number })));
    for (number, output) in futures_util::future::join_all(calls).await.into_iter().enumerate() {
        assert_eq!(output.unwrap().to_text(), (number * 2).to_string());
    }
    let port = MemoryPort::new(10, 0);
    port.answer(Answer::Given { value: json!({ "city": "Oslo" }) });
    for (tool, arguments, expected) in
        [("double", json!({ "number": 4 }), json!(8)), ("ask", json!({}), json!({ "city": "Oslo" }))]
    {
        let structured =
            client.call(call_with(&port, tool, arguments)).await.result.unwrap().structured.unwrap();
        assert!(structured == expected || structured == json!({ "result": expected }), "{structured}");
    }
    assert_eq!(port.heard().progress.len(), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_websocket_reconnects_and_the_tools_stay() {
    let running = serve("127.0.0.1:0").await;
    let address = running.address().to_string();
    let client = Client::builder(endpoint(&running)).connect().await.unwrap();
    running.stop().await;
    assert_eq!(client.list().await.unwrap().len(), 2);
    let error = client.call(Call::new("ask", json!({}))).await.result.unwrap_err();
    assert_eq!(error.code(), Code::Dependency, "{error}");
    let running = serve(&address).await;
    // The wait before the next connection attempt may be longer than one call retries.
    eventually("the client reconnects", async || {
        call(&client, "double", json!({ "number": 21 })).await.is_ok_and(|output| output.to_text() == "42")
    })
    .await;
    running.stop().await;
}

/// The messages that answer a call.
type Answers = fn(&Value) -> Vec<Message>;

/// A legacy server over WebSocket that answers each call with given messages.
async fn hostile(answers: impl Fn(&Value) -> Vec<Message> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/ws", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            let key = head.lines().find_map(|line| {
                line.to_ascii_lowercase()
                    .starts_with("sec-websocket-key:")
                    .then(|| line[18..].trim().to_owned())
            });
            let accepted = derive_accept_key(key.unwrap().as_bytes());
            let answer = format!(
                "HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: mcp\r\nSec-WebSocket-Accept: {accepted}\r\n\r\n"
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
            let mut stream = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
            while let Some(Ok(message)) = stream.next().await {
                let Message::Text(text) = message else { continue };
                let message: Value = serde_json::from_str(&text).unwrap();
                let good = |result: Value| {
                    vec![Message::text(
                        json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }).to_string(),
                    )]
                };
                let sent = match message["method"].as_str() {
                    Some("initialize") => good(json!({ "protocolVersion": "2025-11-25", "capabilities": { "tools": {} }, "serverInfo": { "name": "h", "version": "1" } })),
                    Some("tools/list") => good(json!({ "tools": [{ "name": "bad", "inputSchema": { "type": "object" } }] })),
                    Some("tools/call") => answers(&message),
                    Some("server/discover") => vec![Message::text(json!({ "jsonrpc": "2.0", "id": message["id"], "error": { "code": -32601, "message": "no" } }).to_string())],
                    _ => Vec::new(),
                };
                for message in sent {
                    if stream.send(message).await.is_err() {
                        break;
                    }
                }
            }
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_message_fails_its_call() {
    let rows: [(&str, Answers); 5] = [
        ("endless garbage", |_| (0..2_000).map(|_| Message::text("garbage")).collect()),
        ("an overlong message", |_| vec![Message::text("x".repeat(17 << 20))]),
        ("a close", |_| vec![Message::Close(None)]),
        ("an invalid error", |message| {
            vec![Message::text(json!({ "jsonrpc": "2.0", "id": message["id"], "error": 5 }).to_string())]
        }),
        ("nothing", |_| Vec::new()),
    ];
    for (what, answers) in rows {
        let url = hostile(answers).await;
        let endpoint = Endpoint::WebSocket { url, headers: Vec::new() };
        let client = Client::builder(endpoint).timeout(Duration::from_secs(5)).connect().await.unwrap();
        let error = call(&client, "bad", json!({})).await.unwrap_err();
        assert!(matches!(error.code(), Code::Dependency | Code::Timeout | Code::Limit), "{what}: {error}");
        assert!(error.message().len() < 2_000, "{what}");
        assert_eq!(client.list().await.unwrap().len(), 1, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_without_a_websocket_is_an_error() {
    for (answer, code) in [
        ("HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n", Code::NotFound),
        ("HTTP/1.1 302 X\r\nLocation: ws://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", Code::Dependency),
        ("HTTP/1.1 200 X\r\nContent-Length: 0\r\n\r\n", Code::Dependency),
        ("garbage\r\n\r\n", Code::Dependency),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/ws", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = [0; 4 << 10];
                let _ = stream.read(&mut head).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        let error =
            Client::builder(Endpoint::WebSocket { url, headers: Vec::new() }).connect().await.unwrap_err();
        assert_eq!(error.code(), code, "{answer}: {error}");
    }
    let blocked = |url: &str| {
        Client::builder(Endpoint::WebSocket { url: url.to_owned(), headers: Vec::new() }).no_network(true)
    };
    let error = blocked("wss://tools.example/ws").connect().await.unwrap_err();
    assert!(error.message().contains("TOOLPOST_NO_NETWORK"), "{error}");
    assert_eq!(blocked("http://127.0.0.1/ws").connect().await.unwrap_err().code(), Code::InvalidInput);
}
