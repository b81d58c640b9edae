//! Gateways from settings.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{Call, Code, SourceState, ToolError, ToolSource};
use toolpost_gateway::{
    Connect, Gateway, GatewayParts, GatewaySettings, MemoryManifests, MemoryPins, MergeSettings,
    ReconnectSettings, UpstreamSettings,
};
use toolpost_toolbox::Toolbox;

use super::upstream::{Upstream, caller, names, spec, until};

/// The reachable upstreams by target, and all connections.
#[derive(Clone, Default)]
struct Network {
    upstreams: Arc<Mutex<HashMap<String, Arc<Upstream>>>>,
    connected: Arc<Mutex<Vec<String>>>,
}

impl Network {
    fn put(&self, target: &str, upstream: &Arc<Upstream>) {
        self.upstreams.lock().unwrap().insert(target.to_owned(), Arc::clone(upstream));
    }

    fn parts(&self) -> GatewayParts {
        let network = self.clone();
        let connect = move |settings: &UpstreamSettings| -> Arc<dyn Connect> {
            let (network, target) = (network.clone(), settings.target.clone());
            Arc::new(move || {
                network.connected.lock().unwrap().push(target.clone());
                let found = network.upstreams.lock().unwrap().get(&target).cloned();
                async move {
                    let found = found.ok_or_else(|| ToolError::dependency("connection refused"))?;
                    Ok(found as Arc<dyn ToolSource>)
                }
            })
        };
        let mut reconnect = ReconnectSettings::default();
        reconnect.initial_wait = Duration::from_millis(5);
        reconnect.max_wait = Duration::from_millis(50);
        GatewayParts {
            connect: Arc::new(connect),
            pins: Arc::new(MemoryPins::default()),
            manifests: Arc::new(MemoryManifests::default()),
            approval: Arc::new(|upstream, tool| format!("approve {upstream}/{tool}")),
            reconnect,
            merge: MergeSettings::default(),
        }
    }

    fn count(&self, target: &str) -> usize {
        self.connected.lock().unwrap().iter().filter(|connected| *connected == target).count()
    }
}

fn settings(upstreams: &Value) -> GatewaySettings {
    serde_json::from_value(json!({ "upstreams": upstreams })).unwrap()
}

async fn open(network: &Network, upstreams: &Value) -> Gateway {
    Gateway::open("gateway", &settings(upstreams), network.parts()).await.unwrap()
}

#[tokio::test]
async fn each_setting_is_applied() {
    let network = Network::default();
    network.put("calc", &Upstream::new("up", &["add", "sub", "power"]));
    let gateway = open(
        &network,
        &json!([{
            "name": "calc",
            "target": "calc",
            "allow": ["plus", "sub", "power"],
            "deny": ["power"],
            "clients": [{ "identity": "guest", "allow": ["plus"] }, { "identity": "child", "deny": ["sub"] }],
            "rename": [{ "tool": "add", "name": "plus" }],
        }]),
    )
    .await;
    let source = gateway.source();
    assert_eq!(names(&*source).await, ["calc__plus", "calc__sub"]);
    for (who, sees) in
        [("other", &["calc__plus", "calc__sub"][..]), ("guest", &["calc__plus"]), ("child", &["calc__plus"])]
    {
        assert_eq!(names(&*source.seen_by(&caller(who)).unwrap()).await, sees, "{who}");
    }
    let bare = open(
        &network,
        &json!([
            { "name": "one", "target": "calc", "namespace": false, "deny": ["power"] },
            { "name": "two", "target": "calc", "namespace": false, "deny": ["sub"] },
        ]),
    )
    .await;
    assert_eq!(names(&*bare.source()).await, ["add", "sub", "two__add", "power"]);
}

#[tokio::test]
async fn a_lazy_upstream_starts_on_its_first_call() {
    let network = Network::default();
    network.put("a", &Upstream::new("a", &["add"]));
    network.put("b", &Upstream::new("b", &["sub"]));
    let both = json!([
        { "name": "a", "target": "a", "lazy": true },
        { "name": "b", "target": "b" },
    ]);
    let parts = network.parts();
    let first = Gateway::open("g", &settings(&both), parts.clone()).await.unwrap();
    assert_eq!(names(&*first.source()).await, ["a__add", "b__sub"], "without a manifest it is started once");
    let second = Gateway::open("g", &settings(&both), parts).await.unwrap();
    assert_eq!(names(&*second.source()).await, ["a__add", "b__sub"]);
    assert_eq!((network.count("a"), network.count("b")), (1, 2));
    let states: Vec<SourceState> = second.status().iter().map(|upstream| upstream.state).collect();
    assert_eq!(states, [SourceState::NotStarted, SourceState::Ready]);
    let reply = second.source().call(Call::new("a__add", json!({}))).await;
    assert_eq!(reply.result.unwrap().to_text(), "a:add");
    assert_eq!(network.count("a"), 2);
}

#[tokio::test]
async fn pins_quarantine_and_approval() {
    for (pin, changed_runs) in
        [("off", true), ("trust", false), ("trust-first-list", false), ("quarantine", false)]
    {
        let network = Network::default();
        let upstream = Upstream::new("up", &["add"]);
        network.put("calc", &upstream);
        let gateway = open(&network, &json!([{ "name": "calc", "target": "calc", "pin": pin }])).await;
        let source = gateway.source();
        let add = || async { source.call(Call::new("calc__add", json!({}))).await.result };
        assert_eq!(add().await.is_ok(), pin != "quarantine", "{pin}");
        upstream.set(vec![spec("add", "Changed.")]);
        let changed = add().await;
        assert_eq!(changed.is_ok(), changed_runs, "{pin}");
        if pin == "off" {
            assert_eq!(gateway.pin_statuses("calc").await.unwrap_err().code(), Code::Precondition);
            continue;
        }
        let error = changed.unwrap_err();
        assert!(error.suggestion().unwrap().contains("approve calc/add"), "{error}");
        let quarantined = gateway.status().remove(0).quarantined.remove(0);
        assert_eq!((&*quarantined.name, quarantined.remedy.as_deref()), ("add", Some("approve calc/add")));
        let standing = gateway.pin_statuses("calc").await.unwrap().remove(0);
        gateway.approve("calc", "add", &standing.sha256).await.unwrap();
        assert!(add().await.is_ok(), "{pin}");
        let error = gateway.approve("cal", "add", &standing.sha256).await.unwrap_err();
        assert_eq!((error.code(), error.suggestion().is_some()), (Code::NotFound, true));
    }
}

#[tokio::test]
async fn settings_change_while_calls_run() {
    let network = Network::default();
    let (calc, kept) = (Upstream::new("calc", &["add"]), Upstream::new("kept", &["sub"]));
    network.put("calc", &calc);
    network.put("kept", &kept);
    network.put("late", &Upstream::new("late", &["mul"]));
    let gateway =
        open(&network, &json!([{ "name": "calc", "target": "calc" }, { "name": "kept", "target": "kept" }]))
            .await;
    let toolbox = Toolbox::builder().name("front").build().unwrap();
    toolbox.add_source(gateway.source()).await.unwrap();
    let gate = calc.close_gate();
    let running = tokio::spawn({
        let toolbox = toolbox.clone();
        async move { toolbox.run("calc__add", json!({})).await }
    });
    until(async || calc.count_calls() > 0).await;
    let before = toolbox.generation();
    let next = json!([{ "name": "kept", "target": "kept" }, { "name": "late", "target": "late" }]);
    let mut changed = gateway.reload(&settings(&next)).await.unwrap();
    changed.sort();
    assert_eq!(changed, ["calc", "late"]);
    assert_ne!(toolbox.generation(), before, "the change is visible");
    assert_eq!(names(&toolbox).await, ["kept__sub", "late__mul"]);
    assert_eq!(network.count("kept"), 1, "an unchanged upstream is not reconnected");
    assert!(toolbox.run("late__mul", json!({})).await.is_ok());
    gate.add_permits(1);
    assert_eq!(running.await.unwrap().unwrap().to_text(), "calc:add", "the running call is finished");
    assert_eq!(gateway.reload(&settings(&next)).await.unwrap(), Vec::<String>::new());
    let wrong = json!([{ "name": "kept", "target": " " }]);
    assert_eq!(gateway.reload(&settings(&wrong)).await.unwrap_err().code(), Code::InvalidInput);
    assert_eq!(names(&toolbox).await, ["kept__sub", "late__mul"]);
}

#[test]
fn invalid_settings_are_reported_with_their_place() {
    for (upstream, place) in [
        (json!({ "name": "a b", "target": "x" }), "the upstream `a b`"),
        (json!({ "name": "a", "target": "x", "allow": [""] }), "the upstream `a`: `` is not a valid pattern"),
        (json!({ "name": "a", "target": "x", "clients": [{ "identity": "" }] }), "the upstream `a`"),
        (
            json!({ "name": "a", "target": "x", "rename": [{ "tool": "t", "name": "1" }] }),
            "the upstream `a`: `t`",
        ),
        (json!({ "name": "other", "target": "x" }), "two upstreams have this name"),
    ] {
        let all = settings(&json!([{ "name": "OTHER", "target": "x" }, upstream]));
        let error = all.check().unwrap_err();
        assert_eq!(error.code(), Code::InvalidInput);
        assert!(error.message().contains(place), "{error}");
    }
    let unknown = json!({ "upstreams": [{ "name": "a", "target": "x", "namspace": true }] });
    let error = serde_json::from_value::<GatewaySettings>(unknown).unwrap_err().to_string();
    assert!(error.contains("unknown field `namspace`"), "{error}");
}

#[tokio::test]
async fn an_unreachable_upstream_is_added_once_it_is_reachable() {
    let network = Network::default();
    network.put("calc", &Upstream::new("calc", &["add"]));
    let mut parts = network.parts();
    parts.merge.member_timeout = Duration::from_millis(100);
    parts.reconnect.wait_timeout = Duration::from_millis(200);
    let both = json!([{ "name": "gone", "target": "gone" }, { "name": "calc", "target": "calc" }]);
    let gateway = Gateway::open("g", &settings(&both), parts).await.unwrap();
    assert_eq!(names(&*gateway.source()).await, ["calc__add"]);
    let status = gateway.status();
    assert_eq!(status[0].state, SourceState::Failed);
    assert_eq!(status[0].reason.as_deref(), Some("connection refused"));
    network.put("gone", &Upstream::new("gone", &["sub"]));
    until(async || names(&*gateway.source()).await.len() == 2).await;
    assert_eq!(gateway.status()[0].state, SourceState::Ready);
}

/// An upstream that dies repeatedly under load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_upstream_loses_no_name_and_no_finished_call() {
    let make = || {
        let mut add = spec("add", "Add.");
        add.annotations.idempotent = true;
        Upstream::of("calc", vec![add, spec("count", "Count.")])
    };
    let network = Network::default();
    let mut lives = vec![make()];
    network.put("calc", &lives[0]);
    let gateway = Arc::new(open(&network, &json!([{ "name": "calc", "target": "calc" }])).await);
    let toolbox = Toolbox::builder().name("front").build().unwrap();
    toolbox.add_source(gateway.source()).await.unwrap();
    assert_eq!(names(&toolbox).await, ["calc__add", "calc__count"]);

    let over = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..8)
        .map(|number| {
            let (toolbox, over, answered) = (toolbox.clone(), Arc::clone(&over), Arc::clone(&answered));
            // Half of the calls are idempotent.
            let tool = if number % 2 == 0 { "calc__add" } else { "calc__count" };
            tokio::spawn(async move {
                let (mut good, mut lost) = (0_usize, 0_usize);
                while !over.load(Ordering::SeqCst) {
                    match toolbox.run(tool, json!({})).await {
                        Ok(_) => {
                            good += 1;
                            answered.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(error) => {
                            assert_eq!(error.code(), Code::Dependency, "{error}");
                            lost += 1;
                        }
                    }
                    tokio::task::yield_now().await;
                }
                (tool, good, lost)
            })
        })
        .collect();
    // Each instance finishes some calls.
    let work = async || {
        let from = answered.load(Ordering::SeqCst);
        until(async || answered.load(Ordering::SeqCst) >= from + 50).await;
    };
    for _ in 0..5 {
        work().await;
        let next = make();
        network.put("calc", &next);
        lives.last().unwrap().kill();
        lives.push(next);
        for _ in 0..20 {
            assert_eq!(names(&toolbox).await, ["calc__add", "calc__count"], "no name is ever lost");
        }
    }
    work().await;
    over.store(true, Ordering::SeqCst);
    let mut good = 0;
    for caller in callers {
        let (tool, answered, lost) = caller.await.unwrap();
        assert_eq!(lost, 0, "{tool}: what did not start waits, and what ran was finished");
        good += answered;
    }
    let ran: usize = lives.iter().map(|life| life.count_calls()).sum();
    assert_eq!(good, ran, "every call that an upstream finished was answered, and none ran twice");
    assert!(gateway.status()[0].connections >= 6);
}
