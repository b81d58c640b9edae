//! WebSocket: the same protocol, and what hostile clients make of it.

use std::fmt::Write as _;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use toolpost_core::Secret;
use toolpost_mcp::server::RunningServer;

use super::support::{modern, post, request, serve};

/// Connects as a client of RFC 6455 does, with these headers besides.
async fn connect(
    running: &RunningServer,
    more: &[(&str, &str)],
) -> Result<WebSocketStream<TcpStream>, String> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let address = running.address();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut head = format!(
        "GET /ws HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mcp\r\n"
    );
    for (name, value) in more {
        write!(head, "{name}: {value}\r\n").unwrap();
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => answer.push(byte),
            Err(_) => break,
        }
    }
    let answer = String::from_utf8(answer).unwrap();
    if !answer.starts_with("HTTP/1.1 101") {
        return Err(answer);
    }
    // The value of RFC 6455, section 1.3.
    assert!(answer.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{answer}");
    assert!(answer.to_lowercase().contains("sec-websocket-protocol: mcp"), "{answer}");
    Ok(WebSocketStream::from_raw_socket(stream, Role::Client, None).await)
}

async fn next(stream: &mut WebSocketStream<TcpStream>) -> Value {
    loop {
        let message =
            tokio::time::timeout(Duration::from_secs(10), stream.next()).await.expect("an answer in time");
        match message.unwrap().unwrap() {
            Message::Text(text) => return serde_json::from_str(&text).unwrap(),
            Message::Close(_) => return json!("closed"),
            _ => {}
        }
    }
}

fn add(id: u64) -> Message {
    let params = json!({ "name": "add", "arguments": { "a": id, "b": 1 } });
    Message::text(modern(id, "tools/call", params, json!({})).to_string())
}

fn discover() -> Message {
    Message::text(modern(1, "server/discover", json!({}), json!({})).to_string())
}

#[tokio::test]
async fn a_websocket_is_a_conversation() {
    let running = serve(|builder| builder).await;
    assert_eq!(running.websocket_url(), format!("ws://{}/ws", running.address()));
    let mut stream = connect(&running, &[]).await.unwrap();
    stream.send(discover()).await.unwrap();
    assert_eq!(next(&mut stream).await["id"], 1);
    for id in 2..50 {
        stream.send(add(id)).await.unwrap();
    }
    let mut sums = 0;
    for _ in 2..50 {
        let answer = next(&mut stream).await;
        assert_eq!(
            answer["result"]["structuredContent"]["sum"].as_u64(),
            Some(answer["id"].as_u64().unwrap() + 1)
        );
        sums += 1;
    }
    assert_eq!(sums, 48);
    for (sent, code) in [("garbage", -32700), ("[]", -32600)] {
        stream.send(Message::text(sent)).await.unwrap();
        assert_eq!(next(&mut stream).await["error"]["code"], code);
    }
    stream.send(Message::binary(modern(60, "tools/list", json!({}), json!({})).to_string())).await.unwrap();
    assert_eq!(next(&mut stream).await["id"], 60);
    running.stop().await;
}

#[tokio::test]
async fn the_end_of_one_websocket_ends_nothing_else() {
    let running = serve(|builder| builder).await;
    let mut other = connect(&running, &[]).await.unwrap();
    other.send(discover()).await.unwrap();
    assert_eq!(next(&mut other).await["id"], 1);
    for is_polite in [true, false] {
        let mut stream = connect(&running, &[]).await.unwrap();
        stream.send(discover()).await.unwrap();
        assert_eq!(next(&mut stream).await["id"], 1);
        if is_polite {
            stream.close(None).await.unwrap();
            while stream.next().await.is_some() {}
        }
        drop(stream);
        for _ in 0..20 {
            let params = json!({ "name": "add", "arguments": { "a": 1, "b": 1 } });
            assert_eq!(post(running.address(), "tools/call", params, json!({})).await.status, 200);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    other.send(add(7)).await.unwrap();
    assert_eq!(next(&mut other).await["result"]["structuredContent"]["sum"], 8);
    running.stop().await;
}

#[tokio::test]
async fn only_whom_the_guard_lets_in_gets_a_websocket() {
    let running = serve(|builder| builder.bearer(Secret::new("sesame"))).await;
    assert!(connect(&running, &[]).await.unwrap_err().starts_with("HTTP/1.1 401"));
    let page = [("Authorization", "Bearer sesame"), ("Origin", "http://evil.com")];
    assert!(connect(&running, &page).await.unwrap_err().starts_with("HTTP/1.1 403"));
    assert!(connect(&running, &[("Authorization", "Bearer sesame")]).await.is_ok());
    let plain = request(running.address(), "GET", "/ws", &[("Authorization", "Bearer sesame")], "").await;
    assert_eq!(plain.status, 426);
}

#[tokio::test]
async fn fragments_and_floods_end_at_the_limit() {
    let running = serve(|builder| builder.limits(|limits| limits.request_bytes = 10_000)).await;
    let mut stream = connect(&running, &[]).await.unwrap();
    stream.send(discover()).await.unwrap();
    assert_eq!(next(&mut stream).await["id"], 1);
    // A message that never ends, in small pieces.
    let mut sent = 0;
    for piece in 0..1_000 {
        let code = OpCode::Data(if piece == 0 { Data::Text } else { Data::Continue });
        if stream.send(Message::Frame(Frame::message(vec![b'x'; 1_000], code, false))).await.is_err() {
            break;
        }
        sent += 1;
        tokio::task::yield_now().await;
    }
    let ended = async { while let Some(Ok(_)) = stream.next().await {} };
    tokio::time::timeout(Duration::from_secs(5), ended).await.expect("the connection ends");
    assert!(sent > 1);
    let health = request(running.address(), "GET", "/health", &[], "").await;
    assert_eq!(health.status, 200);
}
