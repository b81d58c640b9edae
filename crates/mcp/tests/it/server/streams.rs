//! A conversation over a pair of streams.

use std::time::Duration;

use serde_json::{Value, json};

use super::support::{Conversation, builder, initialize, initialized, modern};

fn discover() -> Value {
    modern(1, "server/discover", json!({}), json!({}))
}

fn add() -> Value {
    modern(2, "tools/call", json!({ "name": "add", "arguments": { "a": 2, "b": 1 } }), json!({}))
}

#[tokio::test]
async fn both_protocol_generations_work() {
    let server = builder().build().unwrap();
    let legacy_call = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": { "name": "add", "arguments": { "a": 2, "b": 1 } } });
    for messages in
        [vec![discover(), add()], vec![initialize("2025-06-18", &json!({})), initialized(), legacy_call]]
    {
        let mut client = Conversation::open(&server);
        for message in messages {
            client.send(message).await;
        }
        let responses = client.responses(2).await;
        assert_eq!(responses[1]["result"]["structuredContent"], json!({ "sum": 3 }), "{responses:?}");
        client.close().await;
    }
}

#[tokio::test]
async fn an_invalid_line_gets_an_error_and_the_next_line_is_served() {
    let server = builder().limits(|limits| limits.request_bytes = 10_000).build().unwrap();
    let mut client = Conversation::open(&server);
    client.send(discover()).await;
    for line in ["not JSON", &"x".repeat(50_000), "[]"] {
        client.send(line).await;
    }
    client.send(add()).await;
    let responses = client.responses(5).await;
    let mut codes: Vec<i64> = responses.iter().filter_map(|found| found["error"]["code"].as_i64()).collect();
    codes.sort_unstable();
    assert_eq!(codes, [-32700, -32600, -32600]);
    assert_eq!(responses[4]["result"]["structuredContent"], json!({ "sum": 3 }));
}

#[tokio::test]
async fn requests_beyond_the_limit_are_rejected() {
    let server = builder().limits(|limits| limits.requests_per_stream = 4).build().unwrap();
    let mut client = Conversation::open(&server);
    client.send(discover()).await;
    client.next().await;
    let slow = json!({ "name": "slow", "arguments": { "ms": 60_000 } });
    for id in 2..6 {
        client.send(modern(id, "tools/call", slow.clone(), json!({}))).await;
    }
    assert_eq!(client.next().await["error"]["code"], -32000);
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_disconnected() {
    let server = builder().limits(|limits| limits.write_time = Duration::from_millis(200)).build().unwrap();
    let mut client = Conversation::with_capacity(&server, 512);
    client.send(discover()).await;
    client.send(modern(2, "tools/list", json!({}), json!({}))).await;
    client.ended().await;
}
