//! Nested sources, and toolboxes behind layers.

use std::sync::Arc;

use serde_json::json;
use toolpost_core::{Call, Code, Output, ToolSource, tool_fn};
use toolpost_gateway::{
    Filter, Filtered, Member, MemoryManifests, MemoryPins, MergeSettings, Merged, Namespaced, Pinned, Pins,
    ReconnectSettings, Reconnecting, Rename, Renamed,
};
use toolpost_toolbox::Toolbox;

use super::upstream::{Upstream, call, caller, names, spec};

const NONE: [&str; 0] = [];

#[tokio::test(start_paused = true)]
async fn a_whole_gateway_nests() {
    let upstream = Upstream::new("up", &["add", "drop", "sub"]);
    let connected = upstream.clone();
    let connect = move || {
        let source: Arc<dyn ToolSource> = connected.clone();
        async move { Ok(source) }
    };
    let manifests = Arc::new(MemoryManifests::default());
    let lazy = Reconnecting::lazy("calc", "d", manifests, connect, ReconnectSettings::default());
    let pinned = Pinned::new(Arc::new(lazy), Pins::new("calc", Arc::new(MemoryPins::default())));
    let renamed = Renamed::new(Arc::new(pinned), [Rename::new("add").name("plus")]).unwrap();
    let filter = Filter::parse(NONE, ["drop"]).unwrap().client("guest", ["plus"], NONE).unwrap();
    let filtered = Filtered::new(Arc::new(renamed), filter);
    let calc = Member::namespaced("calc", Arc::new(filtered)).unwrap();
    let joined = Merged::open("gateway", vec![calc], MergeSettings::default()).await.unwrap();
    let outer = Namespaced::new(Arc::new(joined.clone()), "gw").unwrap();
    let toolbox = Toolbox::builder().name("front").build().unwrap();
    toolbox.add_source(Arc::new(outer)).await.unwrap();

    assert_eq!(names(&toolbox).await, ["gw__calc__plus", "gw__calc__sub"]);
    let guest = toolbox.seen_by(&caller("guest")).unwrap();
    assert_eq!(names(&*guest).await, ["gw__calc__plus"]);
    let reply = ToolSource::call(
        &toolbox,
        Call::new("gw__calc__plus", json!({ "text": "x" })).with_caller(caller("guest")),
    )
    .await;
    assert_eq!(reply.result.unwrap().to_text(), "up:add");
    assert_eq!((&*reply.record.tool, &*reply.record.children[0].tool), ("gw__calc__plus", "add"));
    let made = Call::new("gw__calc__sub", json!({})).with_caller(caller("guest"));
    assert_eq!(toolbox.call(made).await.result.unwrap_err().code(), Code::Permission);
    assert_eq!(toolbox.run("gw__calc__drop", json!({})).await.unwrap_err().code(), Code::NotFound);

    // The outer toolbox sees an inner change, which is quarantined.
    upstream.set(vec![spec("add", "Adds, and more."), spec("sub", "The tool sub.")]);
    // A health check reads the changed list.
    let error = toolbox.run("gw__calc__plus", json!({})).await.unwrap_err();
    assert_eq!(error.code(), Code::Permission, "{error}");
    assert!(toolbox.run("gw__calc__sub", json!({})).await.is_ok());
    assert_eq!(call(&joined, "calc__sub").await.unwrap(), "up:sub");
}

#[tokio::test]
async fn a_toolbox_behind_layers_runs_its_call_path() {
    let shout = tool_fn(spec("shout", "Shout."), async |_args, _ctx| Ok(Output::text("HEY")));
    let inner = Toolbox::builder().name("inner").tool(shout).build().unwrap();
    let source = Namespaced::new(Arc::new(inner.clone()), "n").unwrap();
    assert_eq!(call(&source, "n__shout").await.unwrap(), "HEY");
    let reply = source.call(Call::new("n__shout", json!({ "text": 5 }))).await;
    assert_eq!(reply.result.unwrap_err().code(), Code::InvalidInput, "the schema is checked");
    assert_eq!(inner.records().len(), 2);
}
