//! `toolpost state`.

use std::sync::Arc;

use serde_json::{Value, json};
use toolpost_core::{Commit, Committed, DocStore as _, Write};
use toolpost_store::Store;

use crate::support::TestEnv;

/// A world whose store has `counters/ada` at versions 1 to 3, and another document.
fn counted() -> TestEnv {
    let env = TestEnv::new();
    let store = Store::open(env.path("state.db")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let write = |id: &str, base: u64, patch: Value, value: Value| Commit {
        writes: vec![Write { id: id.into(), base, patch, value: Arc::new(value) }],
        event: Some(json!(format!("to {}", base + 1))),
        ..Commit::default()
    };
    runtime.block_on(async {
        for base in 0..3_u64 {
            let value = json!({ "n": base + 1 });
            let patch = json!([{ "op": if base == 0 { "add" } else { "replace" }, "path": if base == 0 { "" } else { "/n" },
                "value": if base == 0 { value.clone() } else { json!(base + 1) } }]);
            let done = store.commit(write("counters/ada", base, patch, value)).await.unwrap();
            assert_eq!(done, Committed::Done(vec![base + 1]));
        }
        let patch = json!([{ "op": "add", "path": "", "value": 1 }]);
        store.commit(write("other", 0, patch, json!(1))).await.unwrap();
    });
    env
}

#[test]
pub(crate) fn show() {
    let env = counted();
    let run = |words: &[&str]| env.run(["state", "show", "--store", "state.db"].iter().chain(words));
    let shown = run(&["counters/ada", "--json"]).ok().json();
    assert_eq!(shown, json!({ "id": "counters/ada", "version": 3, "value": { "n": 3 } }));
    let text = run(&["counters/ada"]).ok();
    assert_eq!((text.out.as_str(), text.err.trim()), ("{\n  \"n\": 3\n}\n", "version 3"));
    assert_eq!(run(&[]).ok().out, "counters/ada (version 3)\nother (version 1)\n");
    assert_eq!(run(&["nobody", "--json"]).exit(1).error()["code"], "NOT_FOUND");
}

#[test]
pub(crate) fn prefix() {
    let env = counted();
    let listed = env.run(["state", "show", "--prefix", "oth", "--json", "--store", "state.db"]).ok().json();
    assert_eq!(listed, json!({ "documents": [{ "id": "other", "version": 1 }] }));
}

#[test]
pub(crate) fn log() {
    let env = counted();
    let versions = |words: &[&str]| -> Vec<u64> {
        let words =
            ["state", "log", "counters/ada", "--format", "jsonl", "--store", "state.db"].iter().chain(words);
        env.run(words).ok().lines().iter().map(|change| change["version"].as_u64().unwrap()).collect()
    };
    assert_eq!(versions(&[]), [1, 2, 3]);
    assert_eq!(versions(&["--after", "1"]), [2, 3]);
    assert_eq!(versions(&["--limit", "2"]), [1, 2]);
    let text = env.run(["state", "log", "counters/ada", "--store", "state.db"]).ok().out;
    assert!(text.contains("version 2") && text.contains("\"to 2\"") && text.contains("/n"), "{text}");
    env.run(["state", "log", "nobody", "--store", "state.db"]).exit(1);
}

#[test]
pub(crate) fn at() {
    let env = counted();
    let at =
        |version: &str| env.run(["state", "at", "counters/ada", version, "--json", "--store", "state.db"]);
    assert_eq!(at("2").ok().json()["value"], json!({ "n": 2 }));
    assert_eq!(at("9").exit(1).error()["code"], "NOT_FOUND");
}

#[test]
fn viewing_creates_no_file() {
    let env = TestEnv::new();
    let missing = env.run(["state", "show", "--json", "--store", "none.db"]).exit(1).error();
    assert!(missing["message"].as_str().unwrap().contains("none.db"), "{missing}");
    assert!(!env.path("none.db").exists());
    env.write("broken.db", "this is not a database at all, and long enough to be read as one".repeat(100));
    let broken = env.run(["state", "show", "--store", "broken.db"]);
    assert!(!broken.status.success() && broken.err.contains("broken.db"), "{broken}");
}
