//! What hostile and broken clients send.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::support::{MODERN, modern, post, post_with, request, serve};

const JSON: (&str, &str) = ("Content-Type", "application/json");
const ACCEPT: (&str, &str) = ("Accept", "application/json, text/event-stream");
const VERSION: (&str, &str) = ("MCP-Protocol-Version", MODERN);

#[tokio::test]
async fn what_is_no_request_gets_its_error_and_the_server_lives() {
    let running = serve(|builder| builder.limits(|limits| limits.request_bytes = 100_000)).await;
    let address = running.address();
    let list = modern(1, "tools/list", json!({}), json!({})).to_string();
    let deep = format!("{}{}", "[".repeat(40_000), "]".repeat(40_000));
    let large = "x".repeat(100_001);
    let method = ("Mcp-Method", "tools/list");
    for (what, headers, body, expected) in [
        ("another type", vec![("Content-Type", "text/plain"), ACCEPT, VERSION, method], list.as_str(), 415),
        ("nothing accepted", vec![JSON, VERSION, method], list.as_str(), 406),
        ("another method", vec![JSON, ACCEPT, VERSION, ("Mcp-Method", "tools/call")], list.as_str(), 400),
        (
            "no version that is known",
            vec![JSON, ACCEPT, ("MCP-Protocol-Version", "1999-01-01"), method],
            list.as_str(),
            400,
        ),
        (
            "a session that is not",
            vec![JSON, ACCEPT, ("Mcp-Session-Id", "x")],
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#,
            404,
        ),
        ("large", vec![JSON, ACCEPT, VERSION, method], large.as_str(), 413),
    ] {
        let answer = request(address, "POST", "/mcp", &headers, body).await;
        assert_eq!(answer.status, expected, "{what}: {answer:?}");
    }
    for (what, body) in [
        ("garbage", "garbage"),
        ("nothing", ""),
        ("half", "{\"jsonrpc\":\"2.0\","),
        ("a batch", "[]"),
        ("deep", deep.as_str()),
        ("a number", "1"),
        ("an id that is an object", r#"{"jsonrpc":"2.0","id":{},"method":"tools/list"}"#),
        ("a huge id", r#"{"jsonrpc":"2.0","id":123456789012345678901234567890,"method":"tools/list"}"#),
        ("another version of JSON-RPC", r#"{"jsonrpc":"1.0","id":1,"method":"tools/list"}"#),
    ] {
        let answer = request(address, "POST", "/mcp", &[JSON, ACCEPT, VERSION, method], body).await;
        assert!((400..500).contains(&answer.status), "{what}: {answer:?}");
    }
    assert_eq!(post(address, "tools/list", json!({}), json!({})).await.status, 200);
}

#[tokio::test]
async fn a_version_that_nobody_speaks_is_answered_with_those_that_are() {
    let running = serve(|builder| builder).await;
    let mut list = modern(1, "tools/list", json!({}), json!({}));
    list["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01".into();
    let headers = [JSON, ACCEPT, ("MCP-Protocol-Version", "2099-01-01"), ("Mcp-Method", "tools/list")];
    let answer = request(running.address(), "POST", "/mcp", &headers, &list.to_string()).await.message();
    assert_eq!(answer["error"]["code"], -32022, "{answer}");
    assert!(answer["error"]["data"].to_string().contains(MODERN), "{answer}");
}

#[tokio::test]
async fn a_method_that_is_not_there_is_not_found() {
    let running = serve(|builder| builder).await;
    for method in ["tools/none", "ping", "logging/setLevel", "prompts/get2"] {
        let answer = post(running.address(), method, json!({}), json!({})).await;
        assert_eq!((answer.status, &answer.message()["error"]["code"]), (404, &json!(-32601)), "{method}");
    }
}

#[tokio::test]
async fn arguments_of_every_kind_cost_one_call() {
    let running = serve(|builder| builder).await;
    let address = running.address();
    for arguments in [
        json!({ "a": "\u{202e}\u{0}", "b": 1 }),
        json!({ "a": 1e300, "b": 1 }),
        json!({ "a": 1, "b": 1, "c": "x".repeat(1_000_000) }),
        json!({ "a": i64::MAX }),
    ] {
        let params = json!({ "name": "add", "arguments": arguments });
        let answer = post(address, "tools/call", params, json!({})).await.message();
        assert_eq!(
            answer["result"]["isError"],
            true,
            "{}",
            answer.to_string().chars().take(300).collect::<String>()
        );
    }
    for cursor in ["-1", "x", "99999999999999999999999"] {
        let answer = post(address, "tools/list", json!({ "cursor": cursor }), json!({})).await.message();
        assert_eq!(answer["error"]["code"], -32602, "{cursor}");
    }
    let long = json!({ "name": "x".repeat(100_000) });
    let answer = post(address, "tools/call", long, json!({})).await;
    assert!(answer.body.len() < 2_000, "{}", answer.body.len());
}

#[tokio::test]
async fn pages_end() {
    let running = serve(|builder| builder.limits(|limits| limits.page = 3)).await;
    let mut names: Vec<Value> = Vec::new();
    let mut params = json!({});
    for _ in 0..3 {
        let result =
            post(running.address(), "tools/list", params, json!({})).await.message()["result"].clone();
        names.extend(result["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone()));
        params = json!({ "cursor": result["nextCursor"] });
    }
    assert_eq!(names.len(), 8);
    assert_eq!(params["cursor"], json!(null));
}

#[tokio::test]
async fn slow_clients_are_let_go() {
    let running = serve(|builder| {
        builder.limits(|limits| {
            limits.head_time = Duration::from_millis(200);
            limits.body_time = Duration::from_millis(200);
        })
    })
    .await;
    let address = running.address();
    let head = format!("POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Length: 100\r\n\r\nab");
    for (what, sent) in [("a head", "GET /health HTTP/1.1\r\nHo"), ("a body", head.as_str())] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "{what} may take for ever");
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.contains(" 408 "), "{what}: {answer}");
    }
}

#[tokio::test]
async fn as_many_calls_run_as_may_and_connections_wait() {
    let running = serve(|builder| builder.limits(|limits| limits.calls = 1)).await;
    let address = running.address();
    let slow = tokio::spawn(async move {
        let params = json!({ "name": "slow", "arguments": { "ms": 500 } });
        post(address, "tools/call", params, json!({})).await
    });
    tokio::time::sleep(Duration::from_millis(150)).await;
    let params = json!({ "name": "add", "arguments": { "a": 1, "b": 1 } });
    let refused = post(address, "tools/call", params, json!({})).await.message();
    assert_eq!(refused["result"]["_meta"]["toolpost/error"]["code"], "OVERLOADED", "{refused}");
    assert_eq!(slow.await.unwrap().status, 200);
    let few = serve(|builder| builder.limits(|limits| limits.connections = 1)).await;
    let held = TcpStream::connect(few.address()).await.unwrap();
    let waiting = tokio::spawn({
        let address = few.address();
        async move { request(address, "GET", "/health", &[], "").await.status }
    });
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(!waiting.is_finished());
    drop(held);
    assert_eq!(waiting.await.unwrap(), 200);
}

#[tokio::test]
async fn a_header_that_repeats_an_argument_must_agree() {
    let running = serve(|builder| builder).await;
    let call = modern(1, "tools/call", json!({ "name": "add", "arguments": { "a": 1, "b": 1 } }), json!({}));
    let headers = [JSON, ACCEPT, VERSION, ("Mcp-Method", "tools/call"), ("Mcp-Name", "fail")];
    let answer = request(running.address(), "POST", "/mcp", &headers, &call.to_string()).await;
    assert_eq!((answer.status, &answer.message()["error"]["code"]), (400, &json!(-32020)));
    assert_eq!(post_with(running.address(), &call, &[]).await.status, 200);
}

#[tokio::test]
async fn a_message_of_many_small_values_is_not_read() {
    let running = serve(|builder| builder).await;
    let many = |count: usize| {
        let params = json!({ "name": "list", "arguments": { "x": vec![0; count] } });
        modern(1, "tools/call", params, json!({}))
    };
    let answer = post_with(running.address(), &many(500_001), &[]).await;
    assert_eq!(answer.status, 413, "{answer:?}");
    assert_eq!(post_with(running.address(), &many(1_000), &[]).await.status, 200);
}
