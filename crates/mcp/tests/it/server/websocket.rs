//! WebSocket: the same protocol, and hostile clients.

use std::fmt::Write as _;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use toolpost_core::Secret;
use toolpost_mcp::server::RunningServer;

use super::support::{TIMEOUT, call, modern, request, serve};

pub(super) struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    /// Sends an upgrade request with more headers; an error is the response of the server.
    pub(super) async fn connect(running: &RunningServer, headers: &[(&str, &str)]) -> Result<Self, String> {
        let address = running.address();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut head = format!(
            "GET /ws HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mcp\r\n"
        );
        for (name, value) in headers {
            write!(head, "{name}: {value}\r\n").unwrap();
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
        let mut response = Vec::new();
        while !response.ends_with(b"\r\n\r\n") {
            let Ok(byte) = stream.read_u8().await else { break };
            response.push(byte);
        }
        let response = String::from_utf8(response).unwrap();
        if !response.starts_with("HTTP/1.1 101") {
            return Err(response);
        }
        // The value of RFC 6455, section 1.3.
        assert!(response.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{response}");
        assert!(response.to_lowercase().contains("sec-websocket-protocol: mcp"), "{response}");
        Ok(Self(WebSocketStream::from_raw_socket(stream, Role::Client, None).await))
    }

    /// Connects and negotiates the version.
    async fn open(running: &RunningServer) -> Self {
        let mut socket = Self::connect(running, &[]).await.unwrap();
        socket.send(modern(1, "server/discover", json!({}), json!({}))).await;
        assert_eq!(socket.next().await["id"], 1);
        socket
    }

    pub(super) async fn send(&mut self, message: impl std::fmt::Display) {
        self.0.send(Message::text(message.to_string())).await.unwrap();
    }

    pub(super) async fn next(&mut self) -> Value {
        loop {
            let message = tokio::time::timeout(TIMEOUT, self.0.next()).await.expect("a response in time");
            if let Message::Text(text) = message.unwrap().unwrap() {
                return serde_json::from_str(&text).unwrap();
            }
        }
    }
}

fn add(id: u64) -> Value {
    modern(id, "tools/call", json!({ "name": "add", "arguments": { "a": id, "b": 1 } }), json!({}))
}

#[tokio::test]
async fn a_websocket_is_a_conversation() {
    let running = serve(|builder| builder).await;
    assert_eq!(running.websocket_url(), format!("ws://{}/ws", running.address()));
    let mut socket = Socket::open(&running).await;
    for id in 2..50 {
        socket.send(add(id)).await;
    }
    for _ in 2..50 {
        let response = socket.next().await;
        let id = response["id"].as_u64().unwrap();
        assert_eq!(response["result"]["structuredContent"]["sum"], id + 1);
    }
    for (sent, code) in [("garbage", -32700), ("[]", -32600)] {
        socket.send(sent).await;
        assert_eq!(socket.next().await["error"]["code"], code);
    }
    let list = modern(60, "tools/list", json!({}), json!({}));
    socket.0.send(Message::binary(list.to_string())).await.unwrap();
    assert_eq!(socket.next().await["id"], 60);
    running.stop().await;
}

#[tokio::test]
async fn the_end_of_one_websocket_affects_no_other_client() {
    let running = serve(|builder| builder).await;
    let mut other = Socket::open(&running).await;
    for is_graceful in [true, false] {
        let mut socket = Socket::open(&running).await;
        if is_graceful {
            socket.0.close(None).await.unwrap();
            while socket.0.next().await.is_some() {}
        }
        drop(socket);
        let answer = call(running.address(), "add", json!({ "a": 1, "b": 1 })).await;
        assert_eq!(answer["result"]["structuredContent"]["sum"], 2);
        other.send(add(7)).await;
        assert_eq!(other.next().await["result"]["structuredContent"]["sum"], 8);
    }
    running.stop().await;
}

#[tokio::test]
async fn an_upgrade_needs_a_token_and_an_allowed_origin() {
    let running = serve(|builder| builder.bearer(Secret::new("sesame"))).await;
    let token = ("Authorization", "Bearer sesame");
    for (headers, expected) in
        [(&[][..], "HTTP/1.1 401"), (&[token, ("Origin", "http://evil.com")], "HTTP/1.1 403")]
    {
        assert!(Socket::connect(&running, headers).await.err().unwrap().starts_with(expected));
    }
    assert!(Socket::connect(&running, &[token]).await.is_ok());
    assert_eq!(request(running.address(), "GET", "/ws", &[token], "").await.status, 426);
}

#[tokio::test]
async fn an_endless_message_ends_its_connection() {
    let running = serve(|builder| builder.limits(|limits| limits.request_bytes = 10_000)).await;
    let mut socket = Socket::open(&running).await;
    for piece in 0..1_000 {
        let code = OpCode::Data(if piece == 0 { Data::Text } else { Data::Continue });
        let frame = Message::Frame(Frame::message(vec![b'x'; 1_000], code, false));
        if socket.0.send(frame).await.is_err() {
            break;
        }
    }
    let ended = async { while let Some(Ok(_)) = socket.0.next().await {} };
    tokio::time::timeout(TIMEOUT, ended).await.expect("the connection ends");
    assert_eq!(request(running.address(), "GET", "/health", &[], "").await.status, 200);
}
