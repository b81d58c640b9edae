//! HTTP: addresses, both eras, what is refused.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use toolpost_core::{Code, Output, Secret, ToolSpec, tool_fn};
use toolpost_mcp::server::{Hints, Server};
use toolpost_toolbox::Toolbox;

use super::support::{begin_session, builder, modern, post, post_legacy, post_with, request, serve};

#[tokio::test]
async fn a_server_says_where_it_is_and_that_it_is_well() {
    let running = serve(|builder| builder).await;
    let address = running.address();
    assert!(address.ip().is_loopback() && address.port() != 0);
    assert_eq!(running.connection_url(), format!("http://{address}/mcp"));
    assert_eq!(running.health_url(), format!("http://{address}/health"));
    let health = request(address, "GET", "/health", &[], "").await;
    assert_eq!((health.status, health.body.as_str()), (200, "OK"));
    let status: serde_json::Value =
        serde_json::from_str(&request(address, "GET", "/status", &[], "").await.body).unwrap();
    assert_eq!(status["name"], "calc");
    assert_eq!(status["version"], "1.2");
    assert_eq!(status["tools"], 8);
    assert_eq!(status["calls"], json!({ "started": 0, "running": 0, "parked": 0 }));
    for (method, path, expected) in
        [("POST", "/health", 405), ("DELETE", "/status", 405), ("GET", "/", 404), ("GET", "/mcp/x", 404)]
    {
        assert_eq!(request(address, method, path, &[], "").await.status, expected, "{method} {path}");
    }
    running.stop().await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_port_in_use_is_an_error_that_names_the_address() {
    let running = serve(|builder| builder).await;
    let error = builder().build().unwrap().http(running.address()).await.unwrap_err();
    assert_eq!(error.code(), Code::Dependency);
    assert!(error.message().contains(&running.address().to_string()), "{error}");
}

#[tokio::test]
async fn a_server_that_is_dropped_is_gone() {
    let running = serve(|builder| builder).await;
    let address = running.address();
    drop(running);
    for _ in 0..100 {
        if tokio::net::TcpStream::connect(address).await.is_err() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{address} still answers");
}

#[tokio::test]
async fn the_stateless_era_lists_and_calls() {
    let running = serve(|builder| {
        builder
            .instructions("Add with add.")
            .hints(
                "add",
                &Hints::new()
                    .always_load()
                    .search_hint("sum")
                    .max_result_chars(9)
                    .requires_user_interaction(),
            )
            .limits(|limits| limits.list_ttl = std::time::Duration::from_secs(5))
    })
    .await;
    let address = running.address();
    let discovered = post(address, "server/discover", json!({}), json!({})).await;
    let result = &discovered.message()["result"];
    assert!(result["supportedVersions"].as_array().unwrap().contains(&json!("2026-07-28")), "{result}");
    assert_eq!(result["instructions"], "Add with add.");
    assert!(
        result["capabilities"].get("prompts").is_none() && result["capabilities"].get("resources").is_none()
    );
    let listed = post(address, "tools/list", json!({}), json!({})).await;
    assert_eq!(listed.header("content-type"), Some("application/json"));
    let result = &listed.message()["result"];
    assert_eq!(result["ttlMs"], 5_000);
    let names: Vec<_> = result["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["add", "fail", "break", "list", "tell", "greet", "summarise", "slow"]);
    assert_eq!(
        result["tools"][0]["_meta"],
        json!({
            "anthropic/alwaysLoad": true,
            "anthropic/searchHint": "sum",
            "anthropic/maxResultSizeChars": 9,
            "anthropic/requiresUserInteraction": true,
        })
    );
    let called =
        post(address, "tools/call", json!({ "name": "add", "arguments": { "a": 20, "b": 22 } }), json!({}))
            .await;
    assert_eq!(called.header("content-type"), Some("application/json"));
    assert_eq!(
        called.message()["result"],
        json!({
            "resultType": "complete",
            "content": [{ "type": "text", "text": "{\"sum\":42}" }],
            "structuredContent": { "sum": 42 },
            "isError": false,
        })
    );
    let list = post(address, "tools/call", json!({ "name": "list" }), json!({})).await;
    assert_eq!(list.message()["result"]["structuredContent"], json!([1, 2]));
}

#[tokio::test]
async fn the_older_era_lists_and_calls_and_gets_json() {
    let running = serve(|builder| builder).await;
    let address = running.address();
    let session = begin_session(address, json!({}), &[]).await;
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let listed = post_legacy(address, Some(&session), &list, &[]).await;
    assert_eq!(listed.header("content-type"), Some("application/json"), "{listed:?}");
    assert!(listed.message()["result"].get("ttlMs").is_none());
    let call = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": { "name": "list" } });
    let called = post_legacy(address, Some(&session), &call, &[]).await;
    assert_eq!(called.message()["result"]["structuredContent"], json!({ "result": [1, 2] }));
    // What takes longer is a stream of events, and so is what tells something meanwhile.
    let call = json!({ "jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": { "name": "slow", "arguments": { "ms": 60 } } });
    let called = post_legacy(address, Some(&session), &call, &[]).await;
    assert_eq!(called.header("content-type"), Some("text/event-stream"));
    assert_eq!(called.message()["result"]["content"][0]["text"], "done");
    let call = json!({ "jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": { "name": "tell", "_meta": { "progressToken": 7 } } });
    let told = post_legacy(address, Some(&session), &call, &[]).await;
    let methods: Vec<_> = told.messages().iter().map(|message| message["method"].clone()).collect();
    assert!(methods.contains(&json!("notifications/progress")), "{told:?}");
    assert_eq!(methods.last(), Some(&json!(null)), "{told:?}");
}

#[tokio::test]
async fn errors_of_tools_are_results_and_errors_of_requests_are_errors() {
    let running = serve(|builder| builder).await;
    let call = async |name: &str, arguments: serde_json::Value| {
        let params = json!({ "name": name, "arguments": arguments });
        post(running.address(), "tools/call", params, json!({})).await.message()
    };
    let failed = call("fail", json!({})).await;
    assert_eq!(failed["result"]["isError"], true);
    assert_eq!(failed["result"]["content"][0]["text"], "NOT_FOUND: the shelf is empty. Fill it.");
    assert_eq!(failed["result"]["_meta"]["toolpost/error"]["code"], "NOT_FOUND");
    let wrong = call("add", json!({ "a": "x", "b": 1 })).await;
    assert_eq!(wrong["result"]["_meta"]["toolpost/error"]["code"], "INVALID_INPUT");
    let broken = call("break", json!({})).await.to_string();
    assert!(broken.contains("INTERNAL") && !broken.contains("hunter2"), "{broken}");
    let unknown = call("ad", json!({})).await;
    assert_eq!(unknown["error"]["code"], -32602);
    assert!(unknown["error"]["message"].as_str().unwrap().contains("add"), "{unknown}");
}

#[tokio::test]
async fn notices_reach_only_those_who_want_them() {
    let running = serve(|builder| builder).await;
    let tell = async |meta: serde_json::Value| {
        let params = json!({ "name": "tell", "_meta": meta });
        post(running.address(), "tools/call", params, json!({})).await.messages()
    };
    assert_eq!(tell(json!({})).await.len(), 1);
    let told = tell(json!({ "progressToken": "p", "io.modelcontextprotocol/logLevel": "info" })).await;
    let methods: Vec<_> = told.iter().map(|message| message["method"].as_str().unwrap_or("answer")).collect();
    assert_eq!(
        methods,
        ["notifications/message", "notifications/progress", "notifications/progress", "answer"]
    );
    assert_eq!(told[0]["params"]["data"], "begun");
    assert_eq!(told[1]["params"]["progress"], 50.0);
    assert_eq!(told[1]["params"]["total"], 100.0);
    // Each value is above the one before, as the protocol wants it.
    assert!(told[2]["params"]["progress"].as_f64().unwrap() > 50.0);
}

#[tokio::test]
async fn a_token_is_wanted_where_one_was_set() {
    let running = serve(|builder| builder.bearer(Secret::new("sesame"))).await;
    let address = running.address();
    let list = modern(1, "tools/list", json!({}), json!({}));
    let refused = post_with(address, &list, &[]).await;
    assert_eq!(refused.status, 401);
    assert_eq!(refused.header("www-authenticate"), Some("Bearer realm=\"mcp\""));
    assert_eq!(post_with(address, &list, &[("Authorization", "Bearer wrong")]).await.status, 401);
    assert_eq!(post_with(address, &list, &[("Authorization", "Bearer sesame")]).await.status, 200);
    assert_eq!(request(address, "GET", "/status", &[], "").await.status, 401);
    assert_eq!(request(address, "GET", "/health", &[], "").await.status, 200);
}

#[tokio::test]
async fn hostile_hosts_and_pages_are_refused_before_anything_is_read() {
    let running = serve(|builder| builder.host("tools.example").origin("https://app.example")).await;
    let address = running.address();
    let port = address.port();
    let own = format!("http://localhost:{port}");
    for (headers, expected) in [
        (vec![("Host", "evil.com")], 403),
        (vec![("Origin", "http://evil.com")], 403),
        (vec![("Origin", "null")], 403),
        (vec![("Origin", "http://localhost:1")], 403),
        (vec![("Origin", own.as_str())], 200),
        (vec![("Host", "tools.example"), ("Origin", "https://app.example")], 200),
    ] {
        let list = modern(1, "tools/list", json!({}), json!({}));
        assert_eq!(post_with(address, &list, &headers).await.status, expected, "{headers:?}");
        for path in ["/health", "/status", "/ws"] {
            let answer = request(address, "GET", path, &headers, "").await;
            assert_eq!(answer.status == 403, expected == 403, "{path} {headers:?}");
        }
    }
}

#[tokio::test]
async fn only_a_loopback_is_listened_on_without_a_token() {
    let error = builder().build().unwrap().http("0.0.0.0:0".parse().unwrap()).await.unwrap_err();
    assert_eq!(error.code(), Code::Permission);
    let server = builder().bearer(Secret::new("sesame")).beyond_loopback().build().unwrap();
    let running = server.http("0.0.0.0:0".parse().unwrap()).await.unwrap();
    assert!(running.address().ip().is_unspecified());
}

#[tokio::test]
async fn a_stop_lets_calls_finish() {
    let running = serve(|builder| builder).await;
    let address = running.address();
    let call = tokio::spawn(async move {
        let params = json!({ "name": "slow", "arguments": { "ms": 400 } });
        post(address, "tools/call", params, json!({})).await
    });
    tokio::time::sleep(std::time::Duration::from_millis(150)).await;
    running.stop().await;
    assert_eq!(call.await.unwrap().message()["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn a_stop_does_not_wait_for_ever() {
    let running =
        serve(|builder| builder.limits(|limits| limits.drain = std::time::Duration::from_millis(100))).await;
    let address = running.address();
    let call = tokio::spawn(async move {
        let params = json!({ "name": "slow", "arguments": { "ms": 60_000 } });
        post(address, "tools/call", params, json!({})).await
    });
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let begun = std::time::Instant::now();
    running.stop().await;
    assert!(begun.elapsed() < std::time::Duration::from_secs(8), "{:?}", begun.elapsed());
    call.abort();
}

#[tokio::test]
async fn a_client_that_takes_nothing_loses_its_place() {
    let large = ToolSpec::new("large", "Much.");
    let toolbox = Toolbox::builder()
        .tool(tool_fn(large, async |_args, _ctx| Ok(Output::text("x".repeat(16 << 20)))))
        .build()
        .unwrap();
    let server = Server::builder(Arc::new(toolbox)).limits(|limits| {
        limits.connections = 1;
        limits.write_time = Duration::from_millis(300);
    });
    let running = server.build().unwrap().http("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = running.address();
    let mut stuck = TcpStream::connect(address).await.unwrap();
    let call = json!({ "name": "large", "arguments": {} });
    let body = modern(1, "tools/call", call, json!({})).to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: tools/call\r\nMcp-Name: large\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stuck.write_all(head.as_bytes()).await.unwrap();
    // There is one place, and it is free again because nothing is taken.
    let answer = request(address, "GET", "/health", &[], "").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "OK"));
    let mut taken = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(10), stuck.read_to_end(&mut taken)).await;
    assert!(taken.len() < 16 << 20, "all {} bytes were sent", taken.len());
}
