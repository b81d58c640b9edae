//! Changes of the source while clients are connected.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use toolpost_core::{BoxFuture, Call, Output, Reply, Secret, ToolError, ToolSource, ToolSpec, tool_fn};
use toolpost_gateway::{Filter, Filtered};
use toolpost_toolbox::Toolbox;

use super::support::{
    EventStream, TIMEOUT, begin_session, call, modern, post, post_legacy, post_with, serve_source, text,
    toolbox,
};

#[tokio::test]
async fn a_new_tool_is_announced_and_listed() {
    let toolbox = toolbox();
    let running = serve_source(toolbox.clone(), |builder| builder).await;
    let address = running.address();
    let filter = json!({ "notifications": { "toolsListChanged": true } });
    let mut events =
        EventStream::modern(address, &modern(7, "subscriptions/listen", filter, json!({}))).await;
    let late = ToolSpec::new("late", "A late tool.");
    toolbox.add(tool_fn(late, async |_args, _ctx| Ok(Output::text("late")))).unwrap();
    events.wait_for("notifications/tools/list_changed").await;
    let listed = post(address, "tools/list", json!({}), json!({})).await.message();
    assert_eq!(listed["result"]["tools"].as_array().unwrap().last().unwrap()["name"], "late");
    assert_eq!(text(&call(address, "late", json!({})).await), "late");
}

/// Notifies when it is dropped.
struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// A tool that never returns, with notifications of its start and of its end.
pub(super) fn endless() -> (Toolbox, Arc<Notify>, Arc<Notify>) {
    let (begun, stopped) = (Arc::<Notify>::default(), Arc::<Notify>::default());
    let (begins, stops) = (Arc::clone(&begun), Arc::clone(&stopped));
    let wait = tool_fn(ToolSpec::new("wait", "Wait."), move |_args, _ctx| {
        let guard = NotifyOnDrop(Arc::clone(&stops));
        begins.notify_one();
        async move {
            let _guard = guard;
            std::future::pending::<Result<Output, ToolError>>().await
        }
    });
    (Toolbox::builder().tool(wait).build().unwrap(), begun, stopped)
}

#[tokio::test]
async fn a_disconnected_client_cancels_its_call() {
    let (toolbox, begun, stopped) = endless();
    let running = serve_source(toolbox, |builder| builder).await;
    let address = running.address();
    let calling = tokio::spawn(async move { call(address, "wait", json!({})).await });
    tokio::time::timeout(TIMEOUT, begun.notified()).await.expect("the call starts");
    calling.abort();
    tokio::time::timeout(TIMEOUT, stopped.notified()).await.expect("the call stops");
}

#[tokio::test]
async fn each_client_sees_its_own_tools() {
    let filter = Filter::parse(["add"], Vec::<&str>::new())
        .and_then(|filter| filter.client("token-2", ["*"], ["fail"]))
        .unwrap();
    let source = Toolbox::builder().name("front").build().unwrap();
    source.add_source(Arc::new(Filtered::new(Arc::new(toolbox()), filter))).await.unwrap();
    let running =
        serve_source(source, |builder| builder.bearer(Secret::new("first")).bearer(Secret::new("second")))
            .await;
    for (token, sees_most) in [("Bearer first", false), ("Bearer second", true)] {
        let send = async |method: &str, params: Value| {
            let message = modern(1, method, params, json!({}));
            post_with(running.address(), &message, &[("Authorization", token)]).await.message()
        };
        let listed = send("tools/list", json!({})).await;
        let tools = listed["result"]["tools"].as_array().unwrap();
        let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        if sees_most {
            assert!(names.len() > 2 && !names.contains(&"fail"), "{names:?}");
        } else {
            assert_eq!(names, ["add"]);
        }
        let hidden = send("tools/call", json!({ "name": "fail" })).await;
        assert!(!hidden.to_string().contains("the shelf is empty"), "{hidden}");
        let reported = send("tools/call", json!({ "name": "report" })).await;
        assert_eq!(reported.to_string().contains("reported"), sees_most, "{reported}");
    }
}

/// A resource whose content is a number.
struct Counting(AtomicU64);

impl ToolSource for Counting {
    fn name(&self) -> &'static str {
        "calc"
    }
    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
    fn generation(&self) -> u64 {
        0
    }
    fn call(&self, _: Call) -> BoxFuture<'_, Reply> {
        unreachable!("the source has no tools")
    }
    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            if call.tool != "count://now" {
                return Err(ToolError::not_found("no such resource"));
            }
            // Each read returns another content.
            Ok(Output::text(self.0.fetch_add(1, Ordering::Relaxed).to_string()))
        })
    }
}

#[tokio::test]
async fn subscribers_learn_of_a_changed_resource() {
    let running = serve_source(Counting(AtomicU64::new(0)), |builder| {
        builder.limits(|limits| {
            limits.watch_interval = Duration::from_millis(30);
            limits.subscriptions = 1;
        })
    })
    .await;
    let address = running.address();
    let session = begin_session(address, &[]).await;
    let mut events = EventStream::legacy(address, &session).await;
    let send = async |method: &str, uri: &str| {
        let message = json!({ "jsonrpc": "2.0", "id": 5, "method": method, "params": { "uri": uri } });
        post_legacy(address, Some(&session), &message, &[]).await.message()
    };
    assert_eq!(send("resources/subscribe", "count://never").await["error"]["code"], -32002);
    assert_eq!(send("resources/subscribe", "count://now").await["result"], json!({}));
    events.wait_for("notifications/resources/updated").await;
    assert_eq!(send("resources/unsubscribe", "count://now").await["result"], json!({}));
}
