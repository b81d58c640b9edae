//! HTTP: addresses, both protocol generations, rejected requests, shutdown.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use toolpost_core::{Code, Output, Secret, ToolSpec, tool_fn};
use toolpost_mcp::server::Hints;
use toolpost_testkit::eventually;
use toolpost_toolbox::Toolbox;

use super::support::{
    begin_session, builder, call, call_runs, error_code, modern, post, post_legacy, post_with, request,
    serve, serve_source, status, text,
};

#[tokio::test]
async fn a_server_reports_its_urls_and_its_status() {
    let running = serve(|builder| builder).await;
    let address = running.address();
    assert!(address.ip().is_loopback() && address.port() != 0);
    assert_eq!(running.connection_url(), format!("http://{address}/mcp"));
    assert_eq!(running.health_url(), format!("http://{address}/health"));
    let health = request(address, "GET", "/health", &[], "").await;
    assert_eq!((health.status, health.body.as_str()), (200, "OK"));
    let status = status(address).await;
    assert_eq!(
        (&status["name"], &status["version"], &status["tools"]),
        (&json!("calc"), &json!("1.2"), &json!(8))
    );
    assert_eq!(status["calls"], json!({ "started": 0, "running": 0, "parked": 0 }));
    for (method, path, expected) in
        [("POST", "/health", 405), ("DELETE", "/status", 405), ("GET", "/", 404), ("GET", "/mcp/x", 404)]
    {
        assert_eq!(request(address, method, path, &[], "").await.status, expected, "{method} {path}");
    }
    let error = builder().build().unwrap().http(address).await.unwrap_err();
    assert_eq!(error.code(), Code::Dependency);
    assert!(error.message().contains(&address.to_string()), "{error}");
    running.stop().await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_dropped_server_stops_listening() {
    let running = serve(|builder| builder).await;
    let address = running.address();
    drop(running);
    eventually("the port is closed", async || TcpStream::connect(address).await.is_err()).await;
}

#[tokio::test]
async fn a_modern_client_lists_and_calls() {
    let running = serve(|builder| {
        builder.instructions("Add with add.").hints(|spec| match spec.name.as_str() {
            "add" => Hints::new().always_load().search_hint("sum"),
            _ => Hints::new(),
        })
    })
    .await;
    let address = running.address();
    let discovered = post(address, "server/discover", json!({}), json!({})).await.message();
    let result = &discovered["result"];
    assert!(result["supportedVersions"].as_array().unwrap().contains(&json!("2026-07-28")), "{result}");
    assert_eq!(result["instructions"], "Add with add.");
    let capabilities = &result["capabilities"];
    assert!(capabilities.get("prompts").is_none() && capabilities.get("resources").is_none());
    let listed = post(address, "tools/list", json!({}), json!({})).await;
    assert_eq!(listed.header("content-type"), Some("application/json"));
    let result = &listed.message()["result"];
    assert_eq!(result["ttlMs"], 0);
    let names: Vec<_> = result["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["add", "fail", "break", "list", "report", "greet", "summarize", "slow"]);
    let hints = json!({ "anthropic/alwaysLoad": true, "anthropic/searchHint": "sum" });
    assert_eq!(result["tools"][0]["_meta"], hints);
    assert_eq!(result["tools"][1].get("_meta"), None);
    let expected = json!({
        "resultType": "complete",
        "content": [{ "type": "text", "text": "{\"sum\":42}" }],
        "structuredContent": { "sum": 42 },
        "isError": false,
    });
    assert_eq!(call(address, "add", json!({ "a": 20, "b": 22 })).await["result"], expected);
    assert_eq!(call(address, "list", json!({})).await["result"]["structuredContent"], json!([1, 2]));
}

#[tokio::test]
async fn a_legacy_client_gets_json_for_a_quick_response_and_a_stream_otherwise() {
    let running = serve(|builder| builder).await;
    let address = running.address();
    let session = begin_session(address, &[]).await;
    let send = async |method: &str, params: Value| {
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        post_legacy(address, Some(&session), &message, &[]).await
    };
    let listed = send("tools/list", json!({})).await;
    assert_eq!(listed.header("content-type"), Some("application/json"), "{listed:?}");
    assert!(listed.message()["result"].get("ttlMs").is_none());
    let called = send("tools/call", json!({ "name": "list" })).await;
    assert_eq!(called.message()["result"]["structuredContent"], json!({ "result": [1, 2] }));
    let called = send("tools/call", json!({ "name": "slow", "arguments": { "ms": 60 } })).await;
    assert_eq!(called.header("content-type"), Some("text/event-stream"));
    assert_eq!(text(&called.message()), "done");
    let called = send("tools/call", json!({ "name": "report", "_meta": { "progressToken": 7 } })).await;
    let methods: Vec<_> = called.messages().iter().map(|message| message["method"].clone()).collect();
    assert!(methods.contains(&json!("notifications/progress")), "{called:?}");
    assert_eq!(methods.last(), Some(&json!(null)), "{called:?}");
}

#[tokio::test]
async fn tool_errors_are_results_and_request_errors_are_errors() {
    let running = serve(|builder| builder).await;
    let call = async |name: &str, arguments: Value| call(running.address(), name, arguments).await;
    let failed = call("fail", json!({})).await;
    assert_eq!(failed["result"]["isError"], true);
    assert_eq!(text(&failed), "NOT_FOUND: the shelf is empty. Fill it.");
    assert_eq!(error_code(&failed), "NOT_FOUND");
    assert_eq!(error_code(&call("add", json!({ "a": "x", "b": 1 })).await), "INVALID_INPUT");
    let broken = call("break", json!({})).await.to_string();
    assert!(broken.contains("INTERNAL") && !broken.contains("hunter2"), "{broken}");
    let unknown = call("ad", json!({})).await;
    assert_eq!(unknown["error"]["code"], -32602);
    assert!(unknown["error"]["message"].as_str().unwrap().contains("add"), "{unknown}");
}

#[tokio::test]
async fn notifications_are_sent_only_on_request() {
    let running = serve(|builder| builder).await;
    let report = async |meta: Value| {
        let params = json!({ "name": "report", "_meta": meta });
        post(running.address(), "tools/call", params, json!({})).await.messages()
    };
    assert_eq!(report(json!({})).await.len(), 1);
    let sent = report(json!({ "progressToken": "p", "io.modelcontextprotocol/logLevel": "info" })).await;
    let methods: Vec<_> =
        sent.iter().map(|message| message["method"].as_str().unwrap_or("response")).collect();
    assert_eq!(
        methods,
        ["notifications/message", "notifications/progress", "notifications/progress", "response"]
    );
    assert_eq!(sent[0]["params"]["data"], "begun");
    assert_eq!((&sent[1]["params"]["progress"], &sent[1]["params"]["total"]), (&json!(50.0), &json!(100.0)));
    // MCP requires increasing values.
    assert!(sent[2]["params"]["progress"].as_f64().unwrap() > 50.0);
}

#[tokio::test]
async fn a_configured_token_is_required() {
    let running = serve(|builder| builder.bearer(Secret::new("sesame"))).await;
    let address = running.address();
    let list = modern(1, "tools/list", json!({}), json!({}));
    let rejected = post_with(address, &list, &[]).await;
    assert_eq!(rejected.status, 401);
    assert_eq!(rejected.header("www-authenticate"), Some("Bearer realm=\"mcp\""));
    assert_eq!(post_with(address, &list, &[("Authorization", "Bearer wrong")]).await.status, 401);
    assert_eq!(post_with(address, &list, &[("Authorization", "Bearer sesame")]).await.status, 200);
    assert_eq!(request(address, "GET", "/status", &[], "").await.status, 401);
    assert_eq!(request(address, "GET", "/health", &[], "").await.status, 200);
}

#[tokio::test]
async fn other_hosts_and_origins_are_rejected_on_every_path() {
    let running = serve(|builder| builder.host("tools.example").origin("https://app.example")).await;
    let address = running.address();
    let own = format!("http://localhost:{}", address.port());
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
            let response = request(address, "GET", path, &headers, "").await;
            assert_eq!(response.status == 403, expected == 403, "{path} {headers:?}");
        }
    }
}

#[tokio::test]
async fn a_server_listens_beyond_loopback_only_with_a_token_and_opt_in() {
    let everywhere = "0.0.0.0:0".parse().unwrap();
    let error = builder().build().unwrap().http(everywhere).await.unwrap_err();
    assert_eq!(error.code(), Code::Permission);
    let server = builder().bearer(Secret::new("sesame")).beyond_loopback().build().unwrap();
    assert!(server.http(everywhere).await.unwrap().address().ip().is_unspecified());
}

#[tokio::test]
async fn a_stop_waits_for_calls_up_to_the_drain_time() {
    for (ms, drain, finishes) in [(300, 10_000, true), (60_000, 100, false)] {
        let running =
            serve(|builder| builder.limits(|limits| limits.drain = Duration::from_millis(drain))).await;
        let address = running.address();
        let calling = tokio::spawn(async move { call(address, "slow", json!({ "ms": ms })).await });
        call_runs(address).await;
        let begun = Instant::now();
        running.stop().await;
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        if finishes {
            assert_eq!(text(&calling.await.unwrap()), "done");
        } else {
            calling.abort();
        }
    }
}

#[tokio::test]
async fn a_client_that_reads_nothing_loses_its_connection() {
    let large = tool_fn(ToolSpec::new("large", "A large result."), async |_args, _ctx| {
        Ok(Output::text("x".repeat(16 << 20)))
    });
    let running = serve_source(Toolbox::builder().tool(large).build().unwrap(), |builder| {
        builder.limits(|limits| {
            limits.connections = 1;
            limits.write_time = Duration::from_millis(300);
        })
    })
    .await;
    let address = running.address();
    let mut stuck = TcpStream::connect(address).await.unwrap();
    let body = modern(1, "tools/call", json!({ "name": "large" }), json!({})).to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: tools/call\r\nMcp-Name: large\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stuck.write_all(head.as_bytes()).await.unwrap();
    // The only connection is free again.
    let health = request(address, "GET", "/health", &[], "").await;
    assert_eq!((health.status, health.body.as_str()), (200, "OK"));
    let mut received = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(10), stuck.read_to_end(&mut received)).await;
    assert!(received.len() < 16 << 20, "all {} bytes were sent", received.len());
}
