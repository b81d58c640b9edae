//! Streams that are one conversation.

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};

use super::support::{builder, modern};

/// Sends lines, ends the input, and gives all answers in the order of their ids.
async fn talk(stream: impl AsyncRead + AsyncWrite, lines: &[String], answers: usize) -> Vec<Value> {
    let (read, mut write) = tokio::io::split(stream);
    for line in lines {
        write.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }
    let mut read = BufReader::new(Box::pin(read)).lines();
    let mut found: Vec<Value> = Vec::new();
    while found.len() < answers {
        let line = tokio::time::timeout(std::time::Duration::from_secs(10), read.next_line()).await;
        let Some(line) = line.expect("an answer in time").unwrap() else { break };
        found.push(serde_json::from_str(&line).unwrap());
    }
    found.sort_by_key(|answer| answer["id"].as_u64());
    found
}

fn add(id: u64) -> String {
    let params = json!({ "name": "add", "arguments": { "a": id, "b": 1 } });
    modern(id, "tools/call", params, json!({})).to_string()
}

#[tokio::test]
async fn both_eras_are_spoken_on_a_stream() {
    let server = builder().build().unwrap();
    for first in [
        modern(1, "server/discover", json!({}), json!({})),
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } } }),
    ] {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (input, output) = tokio::io::split(theirs);
        let serving = tokio::spawn({
            let server = server.clone();
            async move { server.serve_streams(input, output).await }
        });
        let is_modern = first["method"] == "server/discover";
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string();
        let call = if is_modern {
            add(2)
        } else {
            json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": { "name": "add", "arguments": { "a": 2, "b": 1 } } })
                .to_string()
        };
        let mut lines = vec![first.to_string()];
        if !is_modern {
            lines.push(initialized);
        }
        lines.push(call);
        let answers = talk(ours, &lines, 2).await;
        assert_eq!(answers[1]["result"]["structuredContent"], json!({ "sum": 3 }), "{answers:?}");
        serving.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn garbage_costs_one_answer_and_a_long_line_is_passed_over() {
    let server = builder().limits(|limits| limits.request_bytes = 10_000).build().unwrap();
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (input, output) = tokio::io::split(theirs);
    tokio::spawn(async move { server.serve_streams(input, output).await });
    let lines = [
        modern(1, "server/discover", json!({}), json!({})).to_string(),
        "not JSON".to_owned(),
        "x".repeat(50_000),
        "[]".to_owned(),
        add(2),
    ];
    let answers = talk(ours, &lines, 5).await;
    let codes: Vec<i64> = answers.iter().filter_map(|answer| answer["error"]["code"].as_i64()).collect();
    assert_eq!(codes.len(), 3, "{answers:?}");
    assert!(
        codes.contains(&-32700) && codes.iter().filter(|code| **code == -32600).count() == 2,
        "{codes:?}"
    );
    assert_eq!(answers[4]["result"]["structuredContent"], json!({ "sum": 3 }));
}

#[tokio::test]
async fn more_requests_than_there_may_be_are_refused_and_later_ones_are_served() {
    let server = builder().limits(|limits| limits.requests_per_stream = 4).build().unwrap();
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (input, output) = tokio::io::split(theirs);
    tokio::spawn(async move { server.serve_streams(input, output).await });
    let slow = |id: u64| {
        let params = json!({ "name": "slow", "arguments": { "ms": 300 } });
        modern(id, "tools/call", params, json!({})).to_string()
    };
    let mut lines = vec![modern(1, "server/discover", json!({}), json!({})).to_string()];
    lines.extend((2..10).map(slow));
    let answers = talk(ours, &lines, 5).await;
    let refused = answers.iter().filter(|answer| answer["error"]["code"] == -32000).count();
    assert!(refused >= 1, "{answers:?}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_unix_socket_serves_its_user_and_goes_with_its_value() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calc.sock");
    let server = builder().build().unwrap();
    let running = server.unix(&path).await.unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let lines = [modern(1, "server/discover", json!({}), json!({})).to_string(), add(2)];
    // The end of one connection is not that of the others.
    for _ in 0..3 {
        let stream = tokio::net::UnixStream::connect(running.path()).await.unwrap();
        let answers = talk(stream, &lines, 2).await;
        assert_eq!(answers[1]["result"]["structuredContent"], json!({ "sum": 3 }), "{answers:?}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(server.unix(&path).await.is_err(), "somebody listens there");
    running.stop().await;
    assert!(!path.exists());
    // What a server that was killed has left gives way.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(server.unix(&path).await.is_ok());
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_not_served_any_more() {
    let limits = |limits: &mut toolpost_mcp::server::ServerLimits| {
        limits.write_time = std::time::Duration::from_millis(200);
    };
    let server = builder().limits(limits).build().unwrap();
    let (ours, theirs) = tokio::io::duplex(512);
    let (input, output) = tokio::io::split(theirs);
    let serving = tokio::spawn(async move { server.serve_streams(input, output).await });
    let (read, mut write) = tokio::io::split(ours);
    for line in
        [modern(1, "server/discover", json!({}), json!({})), modern(2, "tools/list", json!({}), json!({}))]
    {
        write.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }
    // The streams stay open, and nothing is read.
    let ended = tokio::time::timeout(std::time::Duration::from_secs(10), serving).await;
    ended.expect("it ends").unwrap().unwrap();
    drop((read, write));
}
