//! Agent files as the agent of `run` and `chat`, and the options that a resume or a replay restores.

use serde_json::{Value, json};
use toolpost_sandbox::{Host, Level};

use crate::support::{Finished, TestEnv};

/// An agent that adds, with its own scripted model.
const ADDER: &str = r#"kind = "agent"
v = 1
name = "adder"
description = "Adds numbers."
model = "script:adder.yaml"
system_prompt = "You add."
tools = ["calculate"]
"#;

/// Answers of two prompts.
const ADDING: &str = r#"
turns:
  - text: I add them.
    calls: [{ tool: calculate, args: { expression: 2 + 3 } }]
  - text: "{{ last.text }}"
  - calls: [{ tool: calculate, args: { expression: 5 + 1 } }]
  - text: "Then {{ last.text }}."
"#;

/// A world with the trusted agent in a directory, to test relative paths.
fn world() -> TestEnv {
    let env = TestEnv::new();
    env.write("agents/adder.yaml", ADDING);
    trust(&env, "agents/a.toml", ADDER);
    env
}

fn trust(env: &TestEnv, name: &str, content: &str) {
    env.write(name, content);
    env.run(["trust", name]).ok();
}

const AGENT: [&str; 2] = ["--agent", "agents/a.toml"];

fn run(env: &TestEnv, words: &[&str]) -> Finished {
    env.run(["run", "-p", "go", "--json"].iter().chain(words))
}

/// A run with its notes on standard error, and its stored form.
fn noted(env: &TestEnv, words: &[&str]) -> (String, Value) {
    let ran = env.run(["run", "-p", "go"].iter().chain(words)).ok();
    let id = env.run(["runs", "ls", "--limit", "1", "--json"]).ok().json()["runs"][0]["id"].clone();
    (ran.err, shown(env, &id))
}

/// The stored form of a run.
fn shown(env: &TestEnv, id: &Value) -> Value {
    env.run(["runs", "show", id.as_str().unwrap(), "--json"]).ok().json()
}

#[test]
pub(crate) fn an_agent_file_is_the_agent() {
    let env = world();
    let record = run(&env, &AGENT).ok().json();
    assert_eq!(record["response"], "5", "{record}");
    assert_eq!(record["tools_used"], json!(["calculate"]), "{record}");
    let stored = shown(&env, &record["id"]);
    assert_eq!(stored["system"], "You add.", "{stored}");
    assert_eq!(stored["options"]["agent"]["file"], "agents/a.toml", "{stored}");
    assert_eq!(stored["options"]["agent"]["sha256"].as_str().unwrap().len(), 64, "{stored}");
    let chat = env.run(["chat", "Add.", "--agent", "agents/a.toml"]).ok();
    assert_eq!(chat.out, "5\n", "{chat}");
    // A schema of the file is that of the answer.
    env.write("agents/json.yaml", "turns: [{ text: '{\"sum\": 5}' }]");
    let schema = "output_schema = { type = \"object\", required = [\"sum\"] }\n";
    trust(&env, "agents/json.toml", &format!("{}{schema}", ADDER.replace("adder.yaml", "json.yaml")));
    assert_eq!(env.run(["run", "go", "--agent", "agents/json.toml"]).ok().out, "{\"sum\": 5}\n");
    env.write("agents/json.yaml", "turns: [{ text: five }, { text: five }, { text: five }]");
    env.run(["run", "go", "--agent", "agents/json.toml"]).exit(7);
}

#[test]
fn other_values_of_the_option_are_rejected() {
    let env = TestEnv::new();
    env.write("agents/a.toml", ADDER);
    trust(
        &env,
        "jq.toml",
        "kind = \"command\"\nv = 1\nprogram = \"jq\"\n[[tool]]\nname = \"t\"\ndescription = \"T.\"\n",
    );
    for (agent, exit, part) in [
        ("reviewer", 2, "an agent file, such as `./reviewer.toml`"),
        ("agents/a.toml", 5, "is not trusted"),
        ("missing.toml", 2, "missing.toml"),
        ("jq.toml", 2, "has the kind `command`: expected `agent`"),
    ] {
        let refused = env.run(["run", "go", "--agent", agent]).exit(exit);
        assert!(refused.err.contains(part), "{agent}: {refused}");
    }
    let refused = env.run(["chat", "--agent", "claude-code"]).exit(2);
    assert!(refused.err.contains("Claude Code has no chat"), "{refused}");
}

#[test]
fn given_options_override_the_file() {
    let env = world();
    env.write("other.yaml", "turns: [{ text: Other. }]");
    env.write("reads.yaml", "turns: [{ calls: [{ tool: read_file, args: { path: x } }] }, { text: Read. }]");
    let with = |words: &[&str]| run(&env, &[&AGENT[..], words].concat());
    assert_eq!(with(&["--model", "script:other.yaml"]).ok().json()["response"], "Other.");
    let record = with(&["--system-prompt", "You add fast."]).ok().json();
    assert_eq!(shown(&env, &record["id"])["system"], "You add fast.");
    assert_eq!(with(&["--max-iterations", "1"]).exit(6).json()["stop_reason"], "max_iterations");
    let record = with(&["--model", "script:reads.yaml", "--tools", "read_file"]).ok().json();
    assert_eq!(record["tool_calls"][0]["tool"], "read_file", "{record}");
    // The file of another tool is not offered.
    let record = with(&["--model", "script:reads.yaml"]).json();
    assert!(
        record["tool_calls"]
            .as_array()
            .is_none_or(|calls| calls.iter().all(|call| call["error"].is_object()))
    );
}

#[test]
pub(crate) fn a_resume_and_a_replay_need_no_repeated_options() {
    for resumed in ["--continue", "--resume", "--fork"] {
        let env = world();
        let first = run(&env, &AGENT).ok().json();
        let id = first["id"].as_str().unwrap();
        let words = if resumed == "--continue" { vec![resumed] } else { vec![resumed, id] };
        let (notes, second) = noted(&env, &words);
        assert!(notes.contains("restored: --agent agents/a.toml"), "{notes}");
        assert_eq!(second["record"]["response"], "Then 6.", "{resumed}");
        for id in [&first["id"], &second["summary"]["id"]] {
            let replayed = env.run(["runs", "replay", id.as_str().unwrap()]).ok();
            assert!(replayed.err.contains("the same: 2 exchanges, 1 tool call"), "{replayed}");
        }
    }
    // Targets, model, prompt and limits, also from another directory.
    let env = world();
    env.write(
        "two.yaml",
        "turns: [{ text: One. }, { calls: [{ tool: adder, args: { prompt: x } }] }, { text: Two. }]",
    );
    let given = ["--tools", "agents/a.toml", "--model", "script:two.yaml", "--system-prompt", "Be brief."];
    let first = run(&env, &[&given[..], &["--max-tool-calls", "7", "--max-time", "1m"]].concat()).ok().json();
    let id = first["id"].as_str().unwrap().to_owned();
    let env = env.inside("below");
    let second = run(&env, &["--resume", &id]).ok().json();
    assert_eq!((&second["response"], &second["children"][0]["response"]), (&json!("Two."), &json!("5")));
    let stored = shown(&env, &second["id"]);
    assert_eq!(stored["system"], "Be brief.", "{stored}");
    assert_eq!(stored["options"]["max_tool_calls"], 7, "{stored}");
    assert_eq!(stored["options"]["max_time_ms"], 60_000, "{stored}");
    let replayed = env.run(["runs", "replay", second["id"].as_str().unwrap()]).ok();
    assert!(replayed.err.contains("the same: 4 exchanges"), "{replayed}");
}

#[test]
fn given_options_override_restored_ones() {
    let env = world();
    run(&env, &AGENT).ok();
    env.write("other.yaml", "turns: [{ text: Old. }, { text: Old. }, { text: New. }]");
    assert_eq!(run(&env, &["--continue", "--model", "script:other.yaml"]).ok().json()["response"], "New.");
    // The model of the last run is restored.
    assert_eq!(run(&env, &["--continue", "--max-iterations", "3"]).json()["model"], "script/other.yaml");
    // Another agent has its own options.
    trust(&env, "b.toml", &ADDER.replace("script:adder.yaml", "script:b.yaml").replace("You add.", "You."));
    env.write("b.yaml", "turns: [{ text: a }, { text: b }, { text: c }, { text: d }, { text: e }]");
    let (notes, stored) = noted(&env, &["--continue", "--agent", "b.toml"]);
    assert!(!notes.contains("restored:"), "{notes}");
    assert_eq!(stored["record"]["model"], "script/./b.yaml");
}

#[test]
fn permissions_are_never_restored() {
    let jq = ["--tools", "command:jq"];
    let mut rows: Vec<(Vec<&str>, &str)> = vec![
        (vec!["--yes"], "--yes"),
        (vec!["--tools", "calculate", "--approve", "calculate"], "--approve"),
        (vec!["--live"], "--live"),
        (vec!["--allow-protected", ".git/config"], "--allow-protected"),
    ];
    let placeholder = ["--secret", "KEY", "--allow-host", "a.example"];
    rows.push(([&jq[..], &placeholder].concat(), "--secret, --allow-host"));
    for (option, value) in [("--secret-raw", "KEY"), ("--allow-host", "a.example"), ("--readable", "agents")]
    {
        rows.push(([&jq[..], &[option, value]].concat(), option));
    }
    if Host::probe().best().is_some_and(|best| best > Level::Minimal) {
        rows.push((vec!["--level", "minimal"], "--level minimal"));
    }
    for (words, name) in rows {
        let env = world().with("KEY", "a-secret-value");
        env.write("two.yaml", "turns: [{ text: One. }, { text: Two. }, { text: Three. }]");
        let first = run(&env, &[&words[..], &["--model", "script:two.yaml"]].concat()).ok().json();
        let (notes, stored) = noted(&env, &["--continue"]);
        let line = notes.lines().find(|line| line.contains("not restored:")).unwrap_or_default();
        assert!(line.ends_with(&format!("not restored: {name}")), "{name}: {notes}");
        assert!(stored["record"]["notices"].to_string().contains(line), "{name}: {stored}");
        for key in ["permissions", "level"] {
            assert!(stored["options"].get(key).is_none(), "{name}: {stored}");
        }
        assert!(!shown(&env, &first["id"]).to_string().contains("a-secret-value"), "{name}");
        // A given option is not reported.
        let (notes, _) = noted(&env, &[&["--continue"][..], &words].concat());
        assert!(!notes.contains("not restored:"), "{name}: {notes}");
    }
}

#[test]
fn an_approval_is_asked_again() {
    for approval in [&["--yes"][..], &["--approve", "calculate"]] {
        let env = world();
        let first = run(&env, &[&AGENT[..], &["--ask"], approval].concat()).ok().json();
        assert!(first["tool_calls"][0].get("error").is_none(), "{first}");
        // `--ask` allows nothing, and is restored.
        let second = run(&env, &["--continue"]).json();
        assert_eq!(second["tool_calls"][0]["error"]["code"], "PERMISSION", "{approval:?}: {second}");
    }
}

#[test]
fn trust_is_checked_again_and_a_changed_file_is_named() {
    let env = world();
    let first = run(&env, &AGENT).ok().json();
    let id = first["id"].as_str().unwrap();
    env.write("agents/a.toml", format!("{ADDER}max_iterations = 9\n"));
    for words in [&["run", "-p", "go", "--continue"][..], &["runs", "replay", id]] {
        let refused = env.run(words).exit(5);
        assert!(refused.err.contains("`agents/a.toml` has changed since it was trusted"), "{refused}");
    }
    env.run(["trust", "agents/a.toml"]).ok();
    let changed = "the agent file `agents/a.toml` has changed since the last run";
    let replayed = env.run(["runs", "replay", id]).ok();
    assert!(replayed.err.contains(changed), "{replayed}");
    let (notes, second) = noted(&env, &["--continue"]);
    assert!(notes.replace('\n', " ").contains(changed), "{notes}");
    assert!(second["record"]["notices"].to_string().contains(changed), "{second}");
    // The resumed run has the new digest.
    env.write(
        "agents/adder.yaml",
        "turns: [{ text: 1 }, { text: 2 }, { text: 3 }, { text: 4 }, { text: 5 }]",
    );
    let third = run(&env, &["--continue"]).ok().json();
    assert!(!third["notices"].to_string().contains("has changed"), "{third}");
    env.run(["trust", "--remove", "agents/a.toml"]).ok();
    assert!(env.run(["run", "-p", "go", "--continue"]).exit(5).err.contains("is not trusted"));
}

#[test]
pub(crate) fn the_export_of_a_resumed_run_replays() {
    let env = world();
    run(&env, &AGENT).ok();
    let second = run(&env, &["--continue", "--record", "taped.jsonl"]).ok().json();
    env.run(["runs", "export", second["id"].as_str().unwrap(), "exported.jsonl"]).ok();
    for file in ["replay:exported.jsonl", "replay:taped.jsonl"] {
        let again = run(&env, &[&AGENT[..], &["--model", file]].concat()).ok().json();
        assert_eq!((&again["response"], &again["iterations"]), (&json!("Then 6."), &json!(2)), "{file}");
        let other = env.run(["run", "-p", "stop", "--model", file].iter().chain(&AGENT));
        assert_ne!(other.status.code(), Some(0), "{other}");
    }
}

#[test]
fn a_shown_run_has_every_text() {
    let env = world();
    let record = run(&env, &AGENT).ok().json();
    let id = record["id"].as_str().unwrap();
    let text = env.run(["runs", "show", id]).ok().out;
    let parts = ["You add.", "> go", "I add them.", "calculate", "\n5\n"];
    let places: Vec<_> = parts.iter().map(|part| text.find(part)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}: {text}");
    let texts = shown(&env, &record["id"])["texts"].clone();
    assert_eq!((&texts[0]["text"], &texts[1]["text"]), (&json!("I add them."), &json!("5")), "{texts}");
}
