//! Settings that limit tools, answers and conversations.

use serde_json::{Value, json};

use crate::support::{Anthropic, TestEnv, calls, says, says_whole};

/// Runs a script with a setting; the result must differ from the default one.
#[track_caller]
fn with<T: PartialEq + std::fmt::Debug>(turns: &Value, setting: &str, read: impl Fn(&[Value]) -> T) -> T {
    let run = |words: &[&str]| {
        let env = TestEnv::new();
        env.write("script.yaml", json!({ "turns": turns }).to_string());
        let run = ["run", "-p", "go", "--model", "script:script.yaml", "--tools", "builtin"];
        let run = run.iter().chain(&["--format", "jsonl"]).chain(words);
        read(&env.run(run).lines())
    };
    let result = run(&["--config", setting]);
    assert_ne!(result, run(&[]), "{setting}");
    result
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
    let order = with(&turns, "parallel_tools=1", |lines| {
        let kinds = lines.iter().filter_map(|line| line["type"].as_str()?.strip_prefix("call."));
        kinds.filter(|kind| ["started", "finished"].contains(kind)).map(str::to_owned).collect::<Vec<_>>()
    });
    assert_eq!(order, ["started", "finished", "started", "finished"]);
}

#[test]
pub(crate) fn tool_timeout() {
    let turns = json!([{ "calls": [sleeping("2")] }, { "text": "done" }]);
    // Either the sandbox or the toolbox ends it.
    let is_done = with(&turns, "tool_timeout=300ms", |lines| {
        record(lines)["tool_calls"][0]["sandbox"]["verdict"]["kind"] == "ok"
    });
    assert!(!is_done);
}

#[test]
pub(crate) fn time_ends_a_command_and_its_run() {
    let env = TestEnv::new();
    let turns = json!([{ "calls": [sleeping("20")] }, { "text": "I could not sleep." }]);
    env.write("script.yaml", json!({ "turns": turns }).to_string());
    let run = ["run", "-p", "go", "--model", "script:script.yaml", "--tools", "run_command"];
    let live = env.run(run.iter().chain(&["--max-time", "2s"])).exit(6);
    assert!(live.err.contains("! run_command timeout (") && live.err.contains("max_time"), "{live}");
    let shown = env.run(["runs", "show", "last"]).ok();
    for part in ["✗ max_time", "! run_command timeout {", "I could not sleep."] {
        assert!(shown.out.contains(part), "{part}: {shown}");
    }
}

#[test]
pub(crate) fn tool_output_chars() {
    let call = json!({ "tool": "run_command", "args": { "argv": ["seq", "5000"] } });
    let turns = json!([{ "calls": [call] }, { "text": "{{ last.text }}" }]);
    let read =
        with(&turns, "tool_output_chars=500", |lines| record(lines)["response"].as_str().unwrap().to_owned());
    assert!(read.chars().count() < 700, "{read}");
}

#[test]
pub(crate) fn repetition() {
    let call = json!({ "calls": [{ "tool": "calculate", "args": { "expression": "1" } }] });
    let mut turns = vec![call; 12];
    turns.push(json!({ "text": "done" }));
    let turns = json!(turns);
    let read = |lines: &[Value]| (record(lines)["stop_reason"].clone(), record(lines)["iterations"].clone());
    let (stop, iterations) = with(&turns, "repetition=1", read);
    assert_eq!((stop, iterations), (json!("repeated_call"), json!(3)));
    assert_eq!(with(&turns, "repetition=0", read).0, "end_turn");
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
    assert_eq!(iterations(&["--config", "repairs=0"]), 1);
    assert_eq!(iterations(&["--config", "repairs=4"]), 5);
}

#[test]
pub(crate) fn compaction() {
    // The compaction of the first request, and whether a summary was written.
    let run = |compaction: &str, model: &str, is_summed_up: bool| {
        let sums = (0..4).map(|n| calls("calculate", &json!({"expression": n.to_string()})));
        let summary = is_summed_up.then(|| says_whole("Sums were made."));
        let answers = sums.chain(summary).chain([says("Done.")]).collect();
        let provider = Anthropic::start(answers);
        // An answer of the loopback provider has 12 tokens: the window is always nearly full.
        let row = |id: &str, features: Value| json!({"id": id, "context_window": 12, "features": features});
        let rows = [row("anthropic/tiny", json!({})), row("anthropic/able", json!({"compaction": true}))];
        provider.env.write("models.json", json!({ "models": rows }).to_string());
        let base = ["run", "-p", "x", "--model", model, "--config", "models.file=models.json"];
        let setting = format!("compaction={compaction}");
        let finished = provider.env.run(base.iter().chain(&["--config", &setting])).ok();
        assert_eq!(finished.out, "Done.\n");
        let replayed = provider.env.run(["runs", "ls", "--json"]).ok().json()["runs"][0]["id"].clone();
        let bodies = provider.bodies();
        let edits = bodies[0]["context_management"]["edits"].clone();
        let has_summary = bodies[bodies.len() - 1].to_string().contains("a summary of earlier turns");
        if !edits.is_null() {
            provider.env.run(["runs", "replay", replayed.as_str().unwrap()]).ok();
        }
        (edits[0]["type"].clone(), has_summary)
    };
    let asked = json!("compact_20260112");
    for (words, model, expected) in [
        ("provider", "anthropic/able", (asked.clone(), false)),
        ("auto", "anthropic/able", (asked.clone(), false)),
        ("auto", "anthropic/tiny", (Value::Null, true)),
        ("summary", "anthropic/tiny", (Value::Null, true)),
        ("off", "anthropic/tiny", (Value::Null, false)),
    ] {
        assert_eq!(run(words, model, expected.1), expected, "{words:?} {model}");
    }
    // Errors are found before a request.
    let provider = Anthropic::start(Vec::new());
    let words = [
        "run",
        "-p",
        "x",
        "--config",
        "compaction=provider",
        "--model",
        "anthropic/claude-3-5-sonnet",
        "--json",
    ];
    let error = provider.env.run(words).exit(2).error();
    assert_eq!(error["code"], "UNSUPPORTED");
    assert!(error["message"].as_str().unwrap().contains("Models that support it: "), "{error}");
    provider.env.run(["run", "-p", "x", "--config", "compaction=never"]).exit(2);
    assert!(provider.bodies().is_empty());
}
