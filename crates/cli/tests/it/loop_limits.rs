//! What the loop does about tools and answers that take too much: each option, and its setting.

use serde_json::{Value, json};
use toolpost_testkit::provider::Reply;

use crate::support::{Anthropic, TestEnv, calls, says, says_whole};

/// What `run` with a script comes to, with an option and with the setting of the same meaning.
#[track_caller]
fn both<T: PartialEq + std::fmt::Debug>(
    turns: &Value,
    [option, value, setting]: [&str; 3],
    read: impl Fn(&[Value]) -> T,
) -> T {
    let told = |words: &[&str]| {
        let env = TestEnv::new();
        env.write("script.yaml", json!({ "turns": turns }).to_string());
        env.write("schema.json", r#"{"type": "object"}"#);
        let run = ["run", "-p", "go", "--model", "script:script.yaml", "--tools", "builtin"];
        let run = run.iter().chain(&["--format", "jsonl"]).chain(words);
        read(&env.run(run).lines())
    };
    let with_option = told(&[option, value]);
    assert_eq!(with_option, told(&["--config", &format!("{setting}={value}")]), "{option} {setting}");
    assert_ne!(with_option, told(&[]), "{option}");
    with_option
}

fn record(lines: &[Value]) -> Value {
    lines.last().unwrap()["record"].clone()
}

fn sleeping(seconds: &str) -> Value {
    json!({ "tool": "run_command", "args": { "argv": ["sleep", seconds] } })
}

#[test]
pub(crate) fn parallel_tools() {
    let turns = json!([{ "calls": [sleeping("0.3"), sleeping("0.3")] }, { "text": "done" }]);
    let order = both(&turns, ["--parallel-tools", "1", "parallel_tools"], |lines| {
        let kinds = lines.iter().filter_map(|line| line["type"].as_str()?.strip_prefix("call."));
        kinds.filter(|kind| ["started", "finished"].contains(kind)).map(str::to_owned).collect::<Vec<_>>()
    });
    assert_eq!(order, ["started", "finished", "started", "finished"]);
}

#[test]
pub(crate) fn tool_timeout() {
    let turns = json!([{ "calls": [sleeping("2")] }, { "text": "done" }]);
    // The sandbox ends it a little before, or the toolbox does.
    let is_done = both(&turns, ["--tool-timeout", "300ms", "tool_timeout"], |lines| {
        record(lines)["tool_calls"][0]["sandbox"]["verdict"]["kind"] == "ok"
    });
    assert!(!is_done);
}

#[test]
pub(crate) fn tool_output_chars() {
    let call = json!({ "tool": "run_command", "args": { "argv": ["seq", "5000"] } });
    let turns = json!([{ "calls": [call] }, { "text": "{{ last.text }}" }]);
    let read = both(&turns, ["--tool-output-chars", "500", "tool_output_chars"], |lines| {
        record(lines)["response"].as_str().unwrap().to_owned()
    });
    assert!(read.chars().count() < 700, "{read}");
}

#[test]
pub(crate) fn repetition() {
    let call = json!({ "calls": [{ "tool": "calculate", "args": { "expression": "1" } }] });
    let mut turns = vec![call; 12];
    turns.push(json!({ "text": "done" }));
    let turns = json!(turns);
    let read = |lines: &[Value]| (record(lines)["stop_reason"].clone(), record(lines)["iterations"].clone());
    let (stop, iterations) = both(&turns, ["--repetition", "1", "repetition"], read);
    assert_eq!((stop, iterations), (json!("repeated_call"), json!(3)));
    assert_eq!(both(&turns, ["--repetition", "0", "repetition"], read).0, "end_turn");
}

#[test]
pub(crate) fn repairs() {
    let iterations = |words: &[&str]| {
        let env = TestEnv::new();
        env.write("script.yaml", json!({ "turns": vec![json!({ "text": "no" }); 6] }).to_string());
        env.write("schema.json", r#"{"type": "object"}"#);
        let run = ["run", "-p", "go", "--model", "script:script.yaml", "--output-schema", "schema.json"];
        env.run(run.iter().chain(&["--json"]).chain(words)).exit(7).json()["iterations"].clone()
    };
    assert_eq!(iterations(&[]), 3);
    assert_eq!(iterations(&["--repairs", "0"]), 1);
    assert_eq!(iterations(&["--config", "repairs=4"]), 5);
}

#[test]
pub(crate) fn no_compaction() {
    let run = |words: &[&str], summary: Option<Reply>| {
        let sums = (0..4).map(|n| calls("calculate", &json!({"expression": n.to_string()})));
        let model = Anthropic::start(sums.chain(summary).chain([says("Done.")]).collect());
        // An answer of the loopback provider consumes 12 tokens: the window is always nearly full.
        let row = json!({"models": [{"id": "anthropic/tiny", "context_window": 12}]});
        model.env.write("models.json", row.to_string());
        let base = ["run", "-p", "x", "--model", "anthropic/tiny", "--config", "models.file=models.json"];
        let finished = model.env.run(base.iter().chain(words)).ok();
        assert_eq!(finished.out, "Done.\n");
        let last = model.bodies().pop().unwrap().to_string();
        assert_eq!(last.contains("Sums were made."), last.contains("a summary of what came here"), "{last}");
        last.contains("Sums were made.")
    };
    assert!(run(&[], Some(says_whole("Sums were made."))));
    for words in [["--no-compaction", "--plain"], ["--config", "no_compaction=true"]] {
        assert!(!run(&words, None));
    }
}

#[test]
pub(crate) fn compaction() {
    // What the first request asks its provider to do, and whether a summary of ours was written.
    let run = |words: &[&str], model: &str, is_summed_up: bool| {
        let sums = (0..4).map(|n| calls("calculate", &json!({"expression": n.to_string()})));
        let summary = is_summed_up.then(|| says_whole("Sums were made."));
        let answers = sums.chain(summary).chain([says("Done.")]).collect();
        let provider = Anthropic::start(answers);
        // An answer of the loopback provider consumes 12 tokens: the window is always nearly full.
        let row = |id: &str, features: Value| json!({"id": id, "context_window": 12, "features": features});
        let rows = [row("anthropic/tiny", json!({})), row("anthropic/able", json!({"compaction": true}))];
        provider.env.write("models.json", json!({ "models": rows }).to_string());
        let base = ["run", "-p", "x", "--model", model, "--config", "models.file=models.json"];
        let finished = provider.env.run(base.iter().chain(words)).ok();
        assert_eq!(finished.out, "Done.\n");
        let replayed = provider.env.run(["runs", "ls", "--json"]).ok().json()["runs"][0]["id"].clone();
        let bodies = provider.bodies();
        let edits = bodies[0]["context_management"]["edits"].clone();
        let has_summary = bodies[bodies.len() - 1].to_string().contains("a summary of what came here");
        if !edits.is_null() {
            provider.env.run(["runs", "replay", replayed.as_str().unwrap()]).ok();
        }
        (edits[0]["type"].clone(), has_summary)
    };
    let asked = json!("compact_20260112");
    for words in [["--compaction", "provider"], ["--config", "compaction=provider"]] {
        assert_eq!(run(&words, "anthropic/able", false), (asked.clone(), false), "{words:?}");
    }
    for (words, model, expected) in [
        (&["--compaction", "auto"][..], "anthropic/able", (asked.clone(), false)),
        (&["--compaction", "auto"], "anthropic/tiny", (Value::Null, true)),
        (&["--compaction", "summary", "--config", "compaction=off"], "anthropic/tiny", (Value::Null, true)),
        (&["--compaction", "off"], "anthropic/tiny", (Value::Null, false)),
        (&["--config", "compaction=off"], "anthropic/tiny", (Value::Null, false)),
    ] {
        assert_eq!(run(words, model, expected.1), expected, "{words:?} {model}");
    }
    // What cannot be is found before anybody is asked.
    let provider = Anthropic::start(Vec::new());
    let words =
        ["run", "-p", "x", "--compaction", "provider", "--model", "anthropic/claude-3-5-sonnet", "--json"];
    let error = provider.env.run(words).exit(2).error();
    assert_eq!(error["code"], "UNSUPPORTED");
    assert!(error["message"].as_str().unwrap().contains("Models that support it: "), "{error}");
    provider.env.run(["run", "-p", "x", "--compaction", "off", "--no-compaction"]).exit(2);
    provider.env.run(["run", "-p", "x", "--compaction", "never"]).exit(2);
    assert!(provider.bodies().is_empty());
}
