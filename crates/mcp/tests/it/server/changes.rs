//! What changes while clients are there.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use toolpost_core::{Output, Secret, ToolSpec, tool_fn};
use toolpost_gateway::{Filter, Filtered};
use toolpost_mcp::server::Server;
use toolpost_toolbox::Toolbox;

use super::support::{MODERN, modern, post, post_with, toolbox};

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
    let opening = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nMcp-Method: subscriptions/listen\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {MODERN}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    listening.write_all(format!("{opening}{body}").as_bytes()).await.unwrap();
    let mut heard = Vec::new();
    let mut wait_for = async |wanted: &str| {
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
    wait_for("notifications/subscriptions/acknowledged").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let spec = ToolSpec::new("late", "A late tool.");
    toolbox.add(tool_fn(spec, async |_args, _ctx| Ok(Output::text("late")))).unwrap();
    wait_for("notifications/tools/list_changed").await;
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
    let toolbox = Toolbox::builder().tool(wait).build().unwrap();
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

#[tokio::test]
async fn each_client_sees_what_is_open_to_it() {
    let filter = Filter::parse(["add"], Vec::<&str>::new())
        .and_then(|filter| filter.client("token-2", ["*"], ["fail"]))
        .unwrap();
    let source = Toolbox::builder().name("front").build().unwrap();
    source.add_source(Arc::new(Filtered::new(Arc::new(toolbox()), filter))).await.unwrap();
    let server = Server::builder(Arc::new(source)).bearer(Secret::new("first")).bearer(Secret::new("second"));
    let running = server.build().unwrap().http("127.0.0.1:0".parse().unwrap()).await.unwrap();
    for (token, sees, calls) in [("Bearer first", &["add"][..], "fail"), ("Bearer second", &[], "fail")] {
        let more = [("Authorization", token)];
        let message = modern(1, "tools/list", json!({}), json!({}));
        let listed = post_with(running.address(), &message, &more).await.message();
        let names: Vec<String> = listed["result"]["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| tool["name"].as_str().unwrap_or_default().to_owned())
            .collect();
        if sees.is_empty() {
            assert!(names.len() > 2 && !names.iter().any(|name| name == "fail"), "{names:?}");
        } else {
            assert_eq!(names, sees);
        }
        let message = modern(2, "tools/call", json!({ "name": calls }), json!({}));
        let refused = post_with(running.address(), &message, &more).await.message();
        assert!(!refused.to_string().contains("the shelf is empty"), "{refused}");
        let message = modern(3, "tools/call", json!({ "name": "tell" }), json!({}));
        let told = post_with(running.address(), &message, &more).await.message().to_string();
        assert_eq!(told.contains("told"), sees.is_empty(), "{told}");
    }
    running.stop().await;
}

#[tokio::test]
async fn a_resource_that_changes_is_told_to_those_who_subscribed() {
    use std::sync::atomic::{AtomicU64, Ordering};
    struct Counting(AtomicU64, toolpost_toolbox::Toolbox);
    impl toolpost_core::ToolSource for Counting {
        fn name(&self) -> &'static str {
            "counting"
        }
        fn list(&self) -> toolpost_core::BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, toolpost_core::ToolError>> {
            self.1.list()
        }
        fn generation(&self) -> u64 {
            0
        }
        fn call(&self, call: toolpost_core::Call) -> toolpost_core::BoxFuture<'_, toolpost_core::Reply> {
            toolpost_core::ToolSource::call(&self.1, call)
        }
        fn read(
            &self,
            call: toolpost_core::Call,
        ) -> toolpost_core::BoxFuture<'_, Result<Output, toolpost_core::ToolError>> {
            Box::pin(async move {
                if call.tool != "count://now" {
                    return Err(toolpost_core::ToolError::not_found("nothing is there"));
                }
                Ok(Output::text(self.0.load(Ordering::Relaxed).to_string()))
            })
        }
    }
    let source = Arc::new(Counting(AtomicU64::new(0), toolbox()));
    let server = Server::builder(Arc::clone(&source) as _)
        .name("calc")
        .limits(|limits| {
            limits.watch_interval = Duration::from_millis(30);
            limits.subscriptions = 1;
        })
        .build()
        .unwrap();
    let running = server.http("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = running.address();
    let session = super::support::begin_session(address, json!({}), &[]).await;
    let mut listening = TcpStream::connect(address).await.unwrap();
    let opening = format!(
        "GET /mcp HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\nMcp-Session-Id: {session}\r\n\r\n"
    );
    listening.write_all(opening.as_bytes()).await.unwrap();
    let subscribe = async |method: &str, uri: &str| {
        let message = json!({ "jsonrpc": "2.0", "id": 5, "method": method, "params": { "uri": uri } });
        super::support::post_legacy(address, Some(&session), &message, &[]).await.message()
    };
    assert_eq!(subscribe("resources/subscribe", "count://never").await["error"]["code"], -32002);
    assert_eq!(subscribe("resources/subscribe", "count://now").await["result"], json!({}));
    tokio::time::sleep(Duration::from_millis(100)).await;
    source.0.store(7, Ordering::Relaxed);
    let mut heard = Vec::new();
    let waiting = async {
        while !String::from_utf8_lossy(&heard).contains("notifications/resources/updated") {
            assert_ne!(listening.read_buf(&mut heard).await.unwrap(), 0);
        }
    };
    tokio::time::timeout(Duration::from_secs(5), waiting).await.expect("the notice in time");
    assert_eq!(subscribe("resources/unsubscribe", "count://now").await["result"], json!({}));
}
