//! Hostile and broken HTTP clients.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::support::{
    MODERN, TIMEOUT, call, call_runs, error_code, modern, post, post_with, request, serve, text,
};

const JSON: (&str, &str) = ("Content-Type", "application/json");
const ACCEPT: (&str, &str) = ("Accept", "application/json, text/event-stream");
const VERSION: (&str, &str) = ("MCP-Protocol-Version", MODERN);
const METHOD: (&str, &str) = ("Mcp-Method", "tools/list");

#[tokio::test]
async fn an_invalid_request_gets_an_error_and_the_server_continues() {
    let running = serve(|builder| builder.limits(|limits| limits.request_bytes = 100_000)).await;
    let address = running.address();
    let list = modern(1, "tools/list", json!({}), json!({})).to_string();
    let deep = format!("{}{}", "[".repeat(40_000), "]".repeat(40_000));
    let large = "x".repeat(100_001);
    let legacy = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let good = [JSON, ACCEPT, VERSION, METHOD];
    let old = ("MCP-Protocol-Version", "1999-01-01");
    for (headers, body, expected) in [
        (&[("Content-Type", "text/plain"), ACCEPT, VERSION, METHOD][..], list.as_str(), 415),
        (&[JSON, VERSION, METHOD], &list, 406),
        (&[JSON, ACCEPT, VERSION, ("Mcp-Method", "tools/call")], &list, 400),
        (&[JSON, ACCEPT, old, METHOD], &list, 400),
        (&[JSON, ACCEPT, ("Mcp-Session-Id", "x")], legacy, 404),
        (&good, &large, 413),
        (&good, "garbage", 400),
        (&good, "", 400),
        (&good, "{\"jsonrpc\":\"2.0\",", 400),
        (&good, "[]", 400),
        (&good, &deep, 400),
        (&good, "1", 400),
        (&good, r#"{"jsonrpc":"2.0","id":{},"method":"tools/list"}"#, 400),
        (&good, r#"{"jsonrpc":"2.0","id":123456789012345678901234567890,"method":"tools/list"}"#, 400),
        (&good, r#"{"jsonrpc":"1.0","id":1,"method":"tools/list"}"#, 400),
    ] {
        let response = request(address, "POST", "/mcp", headers, body).await;
        let shown: String = body.chars().take(60).collect();
        // rmcp answers some invalid bodies with 415 or 422.
        let is_expected =
            response.status == expected || expected == 400 && (400..500).contains(&response.status);
        assert!(is_expected, "{headers:?} {shown}: {response:?}");
    }
    assert_eq!(post(address, "tools/list", json!({}), json!({})).await.status, 200);
}

#[tokio::test]
async fn an_unknown_version_gets_the_list_of_supported_versions() {
    let running = serve(|builder| builder).await;
    let mut list = modern(1, "tools/list", json!({}), json!({}));
    list["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01".into();
    let headers = [JSON, ACCEPT, ("MCP-Protocol-Version", "2099-01-01"), METHOD];
    let response = request(running.address(), "POST", "/mcp", &headers, &list.to_string()).await.message();
    assert_eq!(response["error"]["code"], -32022, "{response}");
    assert!(response["error"]["data"].to_string().contains(MODERN), "{response}");
}

#[tokio::test]
async fn an_unknown_method_is_not_found() {
    let running = serve(|builder| builder).await;
    for method in ["tools/none", "ping", "logging/setLevel", "prompts/get2"] {
        let response = post(running.address(), method, json!({}), json!({})).await;
        assert_eq!(
            (response.status, &response.message()["error"]["code"]),
            (404, &json!(-32601)),
            "{method}"
        );
    }
}

#[tokio::test]
async fn invalid_arguments_and_cursors_fail_one_request() {
    let running = serve(|builder| builder).await;
    let address = running.address();
    for arguments in [
        json!({ "a": "\u{202e}\u{0}", "b": 1 }),
        json!({ "a": 1e300, "b": 1 }),
        json!({ "a": 1, "b": 1, "c": "x".repeat(1_000_000) }),
        json!({ "a": i64::MAX }),
    ] {
        let shown: String = arguments.to_string().chars().take(60).collect();
        assert_eq!(call(address, "add", arguments).await["result"]["isError"], true, "{shown}");
    }
    for cursor in ["-1", "x", "99999999999999999999999"] {
        let response = post(address, "tools/list", json!({ "cursor": cursor }), json!({})).await.message();
        assert_eq!(response["error"]["code"], -32602, "{cursor}");
    }
    let long = json!({ "name": "x".repeat(100_000) });
    let response = post(address, "tools/call", long, json!({})).await;
    assert!(response.body.len() < 2_000, "{}", response.body.len());
}

#[tokio::test]
async fn a_list_has_pages() {
    let running = serve(|builder| builder.limits(|limits| limits.page = 3)).await;
    let (mut sizes, mut params) = (Vec::new(), json!({}));
    while sizes.len() < 3 {
        let listed = post(running.address(), "tools/list", params, json!({})).await.message();
        sizes.push(listed["result"]["tools"].as_array().unwrap().len());
        params = json!({ "cursor": listed["result"]["nextCursor"] });
    }
    assert_eq!((sizes, &params["cursor"]), (vec![3, 3, 2], &Value::Null));
}

#[tokio::test]
async fn a_slow_client_is_disconnected() {
    let running = serve(|builder| {
        let limit = Duration::from_millis(200);
        builder.limits(|limits| (limits.head_time, limits.body_time) = (limit, limit))
    })
    .await;
    let address = running.address();
    let head = format!("POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Length: 100\r\n\r\nab");
    for sent in ["GET /health HTTP/1.1\r\nHo", &head] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut response = String::new();
        let ended = tokio::time::timeout(TIMEOUT, stream.read_to_string(&mut response)).await;
        assert!(ended.is_ok(), "no timeout: {sent}");
        assert!(response.is_empty() || response.contains(" 408 "), "{sent}: {response}");
    }
}

#[tokio::test]
async fn calls_beyond_the_limit_fail_and_connections_wait() {
    let running = serve(|builder| builder.limits(|limits| limits.calls = 1)).await;
    let address = running.address();
    let slow = tokio::spawn(async move { call(address, "slow", json!({ "ms": 500 })).await });
    call_runs(address).await;
    let rejected = call(address, "add", json!({ "a": 1, "b": 1 })).await;
    assert_eq!(error_code(&rejected), "OVERLOADED", "{rejected}");
    assert_eq!(text(&slow.await.unwrap()), "done");
    let single = serve(|builder| builder.limits(|limits| limits.connections = 1)).await;
    let address = single.address();
    let mut open = TcpStream::connect(address).await.unwrap();
    // An interim response shows that the server has accepted this connection.
    let head =
        format!("POST /mcp HTTP/1.1\r\nHost: {address}\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n");
    open.write_all(head.as_bytes()).await.unwrap();
    assert!(open.read(&mut [0; 64]).await.unwrap() > 0);
    let mut waiting = tokio::spawn(async move { request(address, "GET", "/health", &[], "").await.status });
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut waiting).await.is_err());
    drop(open);
    assert_eq!(waiting.await.unwrap(), 200);
}

#[tokio::test]
async fn a_header_that_contradicts_the_body_is_rejected() {
    let running = serve(|builder| builder).await;
    let call = modern(1, "tools/call", json!({ "name": "add", "arguments": { "a": 1, "b": 1 } }), json!({}));
    let headers = [JSON, ACCEPT, VERSION, ("Mcp-Method", "tools/call"), ("Mcp-Name", "fail")];
    let response = request(running.address(), "POST", "/mcp", &headers, &call.to_string()).await;
    assert_eq!((response.status, &response.message()["error"]["code"]), (400, &json!(-32020)));
    assert_eq!(post_with(running.address(), &call, &[]).await.status, 200);
}

#[tokio::test]
async fn a_message_with_too_many_values_is_rejected() {
    let running = serve(|builder| builder).await;
    for (count, expected) in [(500_001, 413), (1_000, 200)] {
        let params = json!({ "name": "list", "arguments": { "x": vec![0; count] } });
        let message = modern(1, "tools/call", params, json!({}));
        assert_eq!(post_with(running.address(), &message, &[]).await.status, expected, "{count}");
    }
}
