//! What changes while clients are there.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use toolpost_core::{Output, ToolSpec, tool_fn};
use toolpost_mcp::server::Server;

use super::support::{MODERN, modern, post, toolbox};

#[tokio::test]
async fn a_new_tool_is_told_and_listed() {
    let toolbox = toolbox();
    let server = Server::builder(Arc::new(toolbox.clone())).build().unwrap();
    let running = server.http("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = running.address();
    let mut listening = TcpStream::connect(address).await.unwrap();
    let body = modern(
        7,
        "subscriptions/listen",
        json!({ "notifications": { "toolsListChanged": true } }),
        json!({}),
    );
    let body = body.to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nMcp-Method: subscriptions/listen\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {MODERN}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    listening.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut heard = Vec::new();
    let mut hears = async |wanted: &str| {
        let waiting = async {
            while !String::from_utf8_lossy(&heard).contains(wanted) {
                assert_ne!(
                    listening.read_buf(&mut heard).await.unwrap(),
                    0,
                    "{}",
                    String::from_utf8_lossy(&heard)
                );
            }
        };
        tokio::time::timeout(Duration::from_secs(5), waiting).await.expect("the notice in time");
    };
    hears("notifications/subscriptions/acknowledged").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let spec = ToolSpec::new("late", "A late tool.");
    toolbox.add(tool_fn(spec, async |_args, _ctx| Ok(Output::text("late")))).unwrap();
    hears("notifications/tools/list_changed").await;
    let listed = post(address, "tools/list", json!({}), json!({})).await.message();
    let last = listed["result"]["tools"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["name"], "late");
    let called = post(address, "tools/call", json!({ "name": "late" }), json!({})).await.message();
    assert_eq!(called["result"]["content"][0]["text"], "late");
}

#[tokio::test]
async fn a_client_that_goes_stops_its_call() {
    let stopped = Arc::new(tokio::sync::Notify::new());
    let told = Arc::clone(&stopped);
    let wait = tool_fn(ToolSpec::new("wait", "Wait."), move |_args, _ctx| {
        let told = Arc::clone(&told);
        async move {
            struct Tell(Arc<tokio::sync::Notify>);
            impl Drop for Tell {
                fn drop(&mut self) {
                    self.0.notify_one();
                }
            }
            let _tell = Tell(told);
            std::future::pending::<()>().await;
            Ok(Output::text("never"))
        }
    });
    let toolbox = toolpost_toolbox::Toolbox::builder().tool(wait).build().unwrap();
    let running = Server::builder(Arc::new(toolbox))
        .build()
        .unwrap()
        .http("127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let address = running.address();
    let call =
        tokio::spawn(async move { post(address, "tools/call", json!({ "name": "wait" }), json!({})).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    call.abort();
    tokio::time::timeout(Duration::from_secs(5), stopped.notified()).await.expect("the call stops");
}
