//! Stored runs and conversations.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use toolpost_agent::Runs;
use toolpost_core::{Clock as _, RunId, RunRecord, SystemClock};
use toolpost_store::Store;

use crate::support::{Anthropic, TestEnv, calls, eventually, says};

/// A run of these words with each of the answers.
fn asked(model: &Anthropic, words: &[&str]) -> Value {
    model.env.run(["run", "--json"].iter().chain(words)).ok().json()
}

fn messages(model: &Anthropic, at: usize) -> Vec<String> {
    let body = &model.bodies()[at];
    let texts = body["messages"].as_array().unwrap().iter().map(|message| &message["content"][0]["text"]);
    texts.map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// The conversation's ID of a run.
fn conversation(env: &TestEnv, run: &Value) -> String {
    let shown = env.run(["runs", "show", run["id"].as_str().unwrap(), "--json"]).ok().json();
    shown["summary"]["conversation"].as_str().unwrap().to_owned()
}

#[test]
pub(crate) fn go_on() {
    let model = Anthropic::start(vec![says("One."), says("Two."), says("Three.")]);
    let refused = model.env.run(["run", "-p", "x", "--continue", "--json"]).exit(1).error();
    assert_eq!(refused["code"], "NOT_FOUND");
    asked(&model, &["-p", "first"]);
    asked(&model, &["-p", "second", "--continue"]);
    assert_eq!(messages(&model, 1), ["first", "One.", "second"]);
    asked(&model, &["-p", "third"]);
    assert_eq!(messages(&model, 2), ["third"]);
}

#[test]
pub(crate) fn resume() {
    let model = Anthropic::start(vec![says("One."), says("Other."), says("Two.")]);
    let first = asked(&model, &["-p", "first"]);
    asked(&model, &["-p", "other"]);
    let id = conversation(&model.env, &first);
    asked(&model, &["-p", "second", "--resume", &id]);
    assert_eq!(messages(&model, 2), ["first", "One.", "second"]);
    let refused = model.env.run(["run", "-p", "x", "--resume", "ffffffff", "--json"]).exit(1).error();
    assert_eq!(refused["code"], "NOT_FOUND");
}

#[test]
pub(crate) fn fork() {
    let model = Anthropic::start(vec![says("One."), says("Two."), says("Three.")]);
    let first = asked(&model, &["-p", "first"]);
    let id = conversation(&model.env, &first);
    let second = asked(&model, &["-p", "second", "--fork", &id]);
    assert_ne!(conversation(&model.env, &second), id);
    asked(&model, &["-p", "third", "--resume", &id]);
    assert_eq!(messages(&model, 2), ["first", "One.", "third"]);
}

#[test]
pub(crate) fn no_save() {
    let kept = |words: &[&str]| {
        let model = Anthropic::start(vec![says("One.")]);
        asked(&model, &[&["-p", "first"], words].concat());
        model.env.path("../home/.local/state/toolpost/store.db").exists()
    };
    assert!(kept(&[]));
    assert!(!kept(&["--no-save"]));
    assert!(!kept(&["--config", "no_save=true"]));
}

#[test]
fn no_key_is_stored() {
    let model = Anthropic::start(vec![says(&format!("Your key is {}.", Anthropic::KEY))]);
    let record = asked(&model, &["-p", &format!("My key is {}.", Anthropic::KEY)]);
    let directory = model.env.path("../home/.local/state/toolpost");
    for entry in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        let bytes = std::fs::read(&entry).unwrap();
        assert!(
            !bytes.windows(Anthropic::KEY.len()).any(|some| some == Anthropic::KEY.as_bytes()),
            "{entry:?}"
        );
    }
    let shown = model.env.run(["runs", "show", record["id"].as_str().unwrap()]).ok();
    assert!(shown.out.contains("[secret]") && !shown.out.contains(Anthropic::KEY), "{shown}");
}

#[test]
pub(crate) fn ls() {
    let model = Anthropic::start(vec![says("One."), says("Two.")]);
    assert_eq!(model.env.run(["runs", "ls", "--json"]).exit(1).error()["code"], "NOT_FOUND");
    asked(&model, &["-p", "first"]);
    asked(&model, &["-p", "second"]);
    let all = model.env.run(["runs", "ls", "--json"]).ok().json();
    let titles: Vec<_> = all["runs"].as_array().unwrap().iter().map(|run| run["title"].clone()).collect();
    assert_eq!(titles, ["second", "first"]);
    assert_eq!(model.env.run(["runs", "ls", "--limit", "1", "--format", "jsonl"]).ok().lines().len(), 1);
    let text = model.env.run(["runs", "ls"]).ok();
    assert!(text.out.contains("first") && text.out.contains("7 tokens in, 5 out"), "{text}");
}

#[test]
pub(crate) fn ls_all() {
    let env = TestEnv::new();
    let store = Arc::new(Store::open(env.path("runs.db")).unwrap());
    let runs = Runs::new(store);
    let mut parent = RunRecord::begin(RunId::new(), "script/boss".to_owned(), SystemClock.timestamp());
    parent.stop_reason = "end_turn".to_owned();
    let mut child = parent.clone();
    (child.id, child.parent) = (RunId::new(), Some(parent.id));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        runs.add(&parent, "the task", None).await.unwrap();
        runs.add(&child, "a part of it", None).await.unwrap();
    });
    drop(runs);
    let ls = |words: &[&str]| env.run(["runs", "ls", "--store", "runs.db"].iter().chain(words)).ok();
    let parents = ls(&["--json"]).json();
    assert_eq!(parents["runs"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&parents["runs"][0]["title"], &parents["runs"][0]["parent"]),
        (&json!("the task"), &Value::Null)
    );
    let all = ls(&["--all", "--json"]).json();
    let listed: BTreeMap<_, _> = all["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| (run["title"].as_str().unwrap(), run["parent"].clone()))
        .collect();
    assert_eq!(listed, [("a part of it", json!(parent.id)), ("the task", Value::Null)].into());
    assert!(ls(&["--all"]).out.contains(&format!("part of {}", parent.id)));
    assert!(!ls(&[]).out.contains("part of"));
    // A filtered run does not count towards the limit.
    assert_eq!(ls(&["--limit", "1", "--format", "jsonl"]).json()["title"], "the task");
}

#[test]
pub(crate) fn show() {
    let model = Anthropic::start(vec![calls("calculate", &json!({"expression": "6*7"})), says("It is 42.")]);
    let record = asked(&model, &["-p", "how much?"]);
    let id = record["id"].as_str().unwrap();
    let kept = model.env.run(["runs", "show", id, "--json"]).ok().json();
    assert_eq!(kept["record"]["response"], "It is 42.");
    assert_eq!(kept["summary"]["tool_calls"], 1);
    let text = model.env.run(["runs", "show", id]).ok();
    for part in ["how much?", "calculate", "6*7", "It is 42."] {
        assert!(text.out.contains(part), "{part}: {text}");
    }
    let refused = model.env.run(["runs", "show", "ffffffff", "--json"]).exit(1).error();
    assert_eq!(refused["code"], "NOT_FOUND");
}

#[test]
pub(crate) fn stats() {
    let model = Anthropic::start(vec![says("One."), says("Two.")]);
    asked(&model, &["-p", "first"]);
    asked(&model, &["-p", "second"]);
    let of = |words: &[&str]| model.env.run(["runs", "stats", "--json"].iter().chain(words)).ok().json();
    let all = of(&["--since", "1h"]);
    assert_eq!((&all["runs"], &all["usage"]["output_tokens"]), (&json!(2), &json!(10)));
    eventually("both runs are older than 10 ms", || of(&["--since", "10ms"])["runs"] == 0);
    let listed = |period| {
        model.env.run(["runs", "ls", "--json", "--since", period]).ok().json()["runs"]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!((listed("1h"), listed("10ms")), (2, 0));
    assert!(model.env.run(["runs", "stats"]).ok().out.contains("2 runs, 2 succeeded"));
    assert_eq!(all["call_success_rate"], Value::Null);
}

#[test]
fn stats_have_the_success_rate_of_calls() {
    let env = TestEnv::new();
    env.write(
        "sum.yaml",
        "turns:\n  - calls:\n      - { tool: calculate, args: { expression: 6*7 } }\n      \
         - { tool: calculate, args: { expression: 6* } }\n  - text: Done.\n",
    );
    env.run(["run", "x", "--model", "script:sum.yaml", "--tools", "calculate"]).ok();
    let stats = env.run(["runs", "stats", "--json"]).ok().json();
    let figures = ["tool_calls", "failed_calls", "call_success_rate"].map(|name| stats[name].clone());
    assert_eq!(figures, [json!(2), json!(1), json!(0.5)]);
    let text = env.run(["runs", "stats"]).ok().out;
    assert!(text.contains("2 tool calls, 50 % succeeded"), "{text}");
}

#[test]
pub(crate) fn export() {
    let model = Anthropic::start(vec![calls("calculate", &json!({"expression": "6*7"})), says("It is 42.")]);
    let record = asked(&model, &["-p", "how much?", "--tools", "calculate"]);
    let id = record["id"].as_str().unwrap();
    let exported = model.env.run(["runs", "export", id, "test.jsonl", "--json"]).ok().json();
    assert_eq!(exported["exchanges"], 2);
    model.env.run(["runs", "export", id, "test.jsonl"]).exit(2);
    // The replay accepts the same words and rejects others.
    let words = ["run", "--tools", "calculate", "--model", "replay:test.jsonl", "-p"];
    let again = model.env.run(words.iter().chain(&["how much?"])).ok();
    assert_eq!(again.out, "It is 42.\n");
    assert_eq!(model.bodies().len(), 2);
    let other = model.env.run(words.iter().chain(&["how little?"]));
    assert_ne!(other.status.code(), Some(0), "{other}");
}
