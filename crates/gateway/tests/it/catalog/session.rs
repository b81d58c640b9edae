//! Sessions of dynamic loading.

use serde_json::{Value, json};
use toolpost_gateway::catalog::ToolSession;

#[test]
fn every_option_of_a_session_is_applied() {
    let session = ToolSession::new().with_max_tools(2);
    assert_eq!(session.load([("a", 0), ("b", 0), ("c", 0)]), ["c"]);
    let session = ToolSession::new().with_token_budget(100);
    assert_eq!(session.load([("a", 60), ("b", 50), ("c", 40), ("d", 1)]), ["b", "d"]);
    assert!(session.is_compact() && session.budget().budget_exceeded);
    let session = ToolSession::new().with_token_budget(100).with_auto_compact(false);
    session.load([("a", 80)]);
    assert!(session.budget().warning && !session.budget().budget_exceeded && !session.is_compact());
    let session = ToolSession::new().with_session_id("s").with_metadata("user", "ada");
    assert_eq!(
        (session.session_id().as_deref(), session.metadata()["user"].as_str()),
        (Some("s"), Some("ada"))
    );
    let saved = serde_json::to_value(&session).unwrap();
    assert_eq!(
        saved,
        json!({
            "active_tools": [], "max_tools": 50, "session_id": "s", "metadata": { "user": "ada" },
            "token_budget": null, "_token_counts": {}, "auto_compact": true,
            "_analytics_loads": {}, "_analytics_unloads": {}, "_analytics_calls": {},
        })
    );
}

#[test]
fn the_load_order_is_stable_and_only_changes_grow_the_revision() {
    let session = ToolSession::new();
    let before = session.revision();
    session.load([("c", 1), ("a", 1), ("b", 1)]);
    assert!(session.revision() > before);
    let before = session.revision();
    session.load([("a", 1)]);
    session.unload(["zzz"]);
    session.record_call("a");
    assert_eq!(session.revision(), before);
    session.unload(["a"]);
    session.load([("a", 1)]);
    assert_eq!(session.active_tools(), ["c", "b", "a"]);
    let again: ToolSession = serde_json::from_value(serde_json::to_value(&session).unwrap()).unwrap();
    assert_eq!(again.active_tools(), ["c", "b", "a"]);
    assert!(again.is_active("c") && !again.is_active("zzz"));
    // Clones share their state; a deserialized session does not.
    let clone = session.clone();
    clone.unload(["c"]);
    assert!(!session.is_active("c") && again.is_active("c"));
}

#[test]
fn budget_thresholds_are_75_and_90_percent() {
    for (used, warning, exceeded) in
        [(74, false, false), (75, true, false), (89, true, false), (90, true, true)]
    {
        let session = ToolSession::new().with_token_budget(100);
        session.load([("a", used)]);
        let budget = session.budget();
        assert_eq!(
            (budget.warning, budget.budget_exceeded, budget.tokens_remaining),
            (warning, exceeded, Some(100 - used))
        );
    }
    let none = ToolSession::new().with_token_budget(0);
    assert_eq!(none.load([("a", 1), ("b", 0)]), ["a"]);
    assert!(!none.budget().warning);
}

#[test]
fn foreign_session_data_is_validated() {
    let session: ToolSession = serde_json::from_value(json!({
        "active_tools": ["a", "a", "b"], "_token_counts": { "a": 5, "gone": 1000 }, "unknown": true,
    }))
    .unwrap();
    assert_eq!(session.active_tools(), ["a", "b"]);
    assert_eq!(session.budget().tokens_used, 5);
    for bad in [
        json!({ "active_tools": 7 }),
        json!({ "max_tools": -1 }),
        json!({ "token_budget": "much" }),
        json!([1]),
    ] {
        assert!(serde_json::from_value::<ToolSession>(bad.clone()).is_err(), "{bad}");
    }
    let huge: ToolSession = serde_json::from_value(json!({ "token_budget": u64::MAX })).unwrap();
    assert!(huge.load([("a", u64::MAX), ("b", u64::MAX)]).len() == 1);
}

#[test]
fn analytics_count_loads_and_calls() {
    let session = ToolSession::new();
    session.load([("a", 0), ("b", 0), ("c", 0)]);
    session.unload(["a"]);
    session.load([("a", 0)]);
    for name in ["b", "a", "b"] {
        session.record_call(name);
    }
    let analytics = serde_json::to_value(session.analytics()).unwrap();
    assert_eq!(
        analytics,
        json!({
            "loads": { "a": 2, "b": 1, "c": 1 }, "unloads": { "a": 1 }, "calls": { "a": 1, "b": 2 },
            "most_loaded": [["a", 2], ["b", 1], ["c", 1]], "most_called": [["b", 2], ["a", 1]], "never_called": ["c"],
        })
    );
    session.reset_analytics();
    assert_eq!(session.analytics(), toolpost_gateway::catalog::Analytics::default());
    assert_eq!(session.active_tools(), ["b", "c", "a"]);
}

#[test]
fn concurrent_loads_respect_the_limits() {
    let session = ToolSession::new().with_max_tools(20).with_token_budget(200);
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let session = session.clone();
            scope.spawn(move || {
                for round in 0..200 {
                    let name = format!("t{}", (worker * 7 + round) % 40);
                    session.load([(name.as_str(), 10)]);
                    let budget = session.budget();
                    assert!(budget.active_tool_count <= 20 && budget.tokens_used <= 200);
                    if round % 3 == 0 {
                        session.unload([name.as_str()]);
                    }
                }
            });
        }
    });
    let saved: Value = serde_json::to_value(&session).unwrap();
    let active = saved["active_tools"].as_array().unwrap();
    assert_eq!(saved["_token_counts"].as_object().unwrap().len(), active.len());
    let analytics = session.analytics();
    let (loads, unloads): (u64, u64) = (analytics.loads.values().sum(), analytics.unloads.values().sum());
    assert_eq!(loads - unloads, active.len() as u64);
}
