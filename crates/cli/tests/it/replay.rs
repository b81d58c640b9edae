//! `toolpost runs replay`: a run with its tools and without its provider.

use serde_json::{Value, json};
use toolpost_sandbox::{Host, Level};

use crate::support::{Anthropic, Finished, calls, hesitates, says};

fn read_file() -> Value {
    json!({"path": "note.txt"})
}

/// A world with a run of these words, and its ID.
fn ran(words: &[&str], replies: Vec<toolpost_testkit::provider::Reply>, exit: i32) -> (Anthropic, String) {
    let model = Anthropic::start(replies);
    model.env.write("note.txt", "first");
    let finished = model.env.run(["run", "-p", "go", "--json"].iter().chain(words)).exit(exit);
    let id = finished.json()["id"].as_str().unwrap().to_owned();
    (model, id)
}

fn replay(model: &Anthropic, id: &str, words: &[&str]) -> Finished {
    let before = model.bodies().len();
    let finished = model.env.run(["runs", "replay", id, "--json"].iter().chain(words));
    assert_eq!(model.bodies().len(), before, "the provider was asked");
    finished
}

#[test]
pub(crate) fn a_run_replays_without_its_provider() {
    let sum = || calls("calculate", &json!({"expression": "6*7"}));
    let limited = ["--max-iterations", "1"];
    let rows: [(&[&str], Vec<_>, i32); 6] = [
        (&["--tools", "calculate", "--system-prompt", "Be brief."], vec![sum(), says("42.")], 0),
        (&["--effort", "low", "--config", "max_output_tokens=99"], vec![says("Hello.")], 0),
        (&limited, vec![sum(), says("Summed up.")], 6),
        (&[&limited[..], &["--config", "no_wrap_up=true"]].concat(), vec![sum()], 6),
        (&["--max-tokens", "20"], vec![sum(), sum(), says("Summed up.")], 6),
        (&["--max-tool-calls", "1"], vec![sum(), sum(), says("Summed up.")], 6),
    ];
    for (words, replies, exit) in rows {
        let exchanges = replies.len();
        let (model, id) = ran(words, replies, exit);
        let told = replay(&model, &id, &[]).ok().json();
        assert_eq!((&told["same"], &told["difference"]), (&json!(true), &Value::Null), "{words:?}");
        assert_eq!(
            (&told["exchanges"], &told["replayed"]),
            (&json!(exchanges), &json!(exchanges)),
            "{words:?}"
        );
    }
    let (model, id) = ran(&[], vec![sum(), says("42.")], 0);
    let text = model.env.run(["runs", "replay", &id[..20]]).ok();
    assert!(text.err.contains("the same: 2 exchanges, 1 tool call"), "{text}");
    assert_eq!(replay(&model, "ffffffff", &[]).exit(1).error()["code"], "NOT_FOUND");
}

#[test]
fn schema_answers_and_failures_replay() {
    let refused = json!({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}});
    let refused = toolpost_testkit::provider::Reply::json(400, refused.to_string());
    let (model, id) = ran(&[], vec![refused], 2);
    assert_eq!(replay(&model, &id, &[]).ok().json()["same"], true);
    let model = Anthropic::start(vec![says("no"), says("{\"city\": \"Oslo\"}")]);
    model.env.write("schema.json", r#"{"type": "object", "required": ["city"]}"#);
    let record = model.env.run(["run", "-p", "go", "--json", "--output-schema", "schema.json"]).ok().json();
    let told = replay(&model, record["id"].as_str().unwrap(), &[]).ok().json();
    assert_eq!((&told["same"], &told["replayed"]), (&json!(true), &json!(2)));
}

#[test]
pub(crate) fn a_replayed_tool_sees_current_files() {
    let (model, id) =
        ran(&["--attach", "note.txt"], vec![calls("read_file", &read_file()), says("It says first.")], 0);
    assert_eq!(replay(&model, &id, &["--attach", "note.txt"]).ok().json()["same"], true);
    assert_eq!(replay(&model, &id, &["--workdir", "."]).ok().json()["same"], true);
    let without = replay(&model, &id, &[]).exit(1);
    assert_eq!(without.error()["code"], "REPLAY_MISMATCH");
    model.env.write("note.txt", "second");
    let other = replay(&model, &id, &["--attach", "note.txt"]).exit(1);
    let told = other.json();
    assert_eq!((&told["same"], &told["replayed"]), (&json!(false), &json!(1)));
    let difference = told["difference"].as_str().unwrap();
    assert!(difference.contains("first") && difference.contains("second"), "{difference}");
    assert_eq!(other.error()["message"], difference);
}

#[test]
pub(crate) fn replayed_tools_are_those_of_the_option() {
    let words = ["--tools", "command:jq"];
    let model = Anthropic::start(vec![says("Nothing to do.")]);
    let record = model.env.run(["run", "-p", "go", "--json"].iter().chain(&words)).ok().json();
    let id = record["id"].as_str().unwrap();
    assert_eq!(replay(&model, id, &words).ok().json()["same"], true);
    // The tools of the run are stored with it.
    assert_eq!(replay(&model, id, &[]).ok().json()["same"], true);
    let unknown = replay(&model, id, &["--tools", "nothing"]).exit(2);
    assert!(unknown.err.contains("`--tools` names"), "{unknown}");
}

#[test]
pub(crate) fn a_replay_has_its_own_permissions() {
    let (model, id) =
        ran(&["--tools", "calculate"], vec![calls("calculate", &json!({"expression": "1"})), says("1.")], 0);
    for (words, exit) in [
        (&["--ask", "--no-input"][..], 1),
        (&["--ask", "--yes"], 0),
        (&["--ask", "--no-input", "--approve", "calculate"], 0),
    ] {
        replay(&model, &id, words).exit(exit);
    }
}

#[test]
pub(crate) fn level() {
    let host = Host::probe();
    let code = json!({"language": "bash", "code": "echo hi"});
    let (model, id) = ran(&["--level", "minimal"], vec![calls("run_code", &code), says("hi")], 0);
    for level in [Level::Minimal, Level::Standard] {
        if !host.levels.iter().any(|known| known.level == level && known.available) {
            continue;
        }
        let told = replay(&model, &id, &["--level", &level.to_string()]).json();
        assert_eq!(told["record"]["tool_calls"][0]["sandbox"]["report"]["requested"], level.to_string());
    }
}

#[test]
fn a_run_with_dynamic_tools_replays() {
    let load = || calls("load_tools", &json!({"tool_names": ["calculate"]}));
    let browse = || calls("browse_toolkit", &json!({"query": "arithmetic"}));
    let sum = || calls("calculate", &json!({"expression": "6*7"}));
    let core = ["--core-tool", "read_file"];
    let rows: [(&[&str], Vec<_>, &[&str]); 4] = [
        (&["--dynamic=browse"], vec![browse(), load(), sum(), says("42.")], &[]),
        (
            &[&core[..], &["--dynamic=browse", "--tools", "builtin"]].concat(),
            vec![browse(), load(), sum(), says("42.")],
            &["--tools", "builtin"],
        ),
        (&[&core[..], &["--dynamic=native"]].concat(), vec![sum(), says("42.")], &[]),
        (
            &["--dynamic=script:finder.yaml"],
            vec![calls("find_tools", &json!({"intent": "add"})), load(), sum(), says("42.")],
            &[],
        ),
    ];
    for (words, replies, again) in rows {
        let model = Anthropic::start(replies);
        model.env.write("finder.yaml", "turns:\n  - text: '{}'\n");
        let ran = model.env.run(["run", "-p", "go", "--json"].iter().chain(words)).ok().json();
        let told = replay(&model, ran["id"].as_str().unwrap(), again).ok().json();
        assert_eq!((&told["same"], &told["difference"]), (&json!(true), &Value::Null), "{words:?}");
        assert_eq!(told["exchanges"], told["replayed"], "{words:?}");
        assert_eq!(
            told["record"]["tool_calls"].as_array().unwrap().len(),
            ran["tool_calls"].as_array().unwrap().len()
        );
    }
    // Tools that the conversation had loaded are offered from the first request.
    let model = Anthropic::start(vec![load(), says("Loaded."), sum(), says("42.")]);
    model.env.run(["run", "-p", "load", "--dynamic=browse"]).ok();
    let ran = model.env.run(["run", "-p", "go", "--dynamic=browse", "--continue", "--json"]).ok().json();
    let id = ran["id"].as_str().unwrap();
    assert_eq!(replay(&model, id, &[]).ok().json()["same"], true);
    // With other tools, a search finds something else.
    let model = Anthropic::start(vec![browse(), says("Some.")]);
    let ran = model.env.run(["run", "-p", "go", "--dynamic=browse", "--json"]).ok().json();
    let other = replay(&model, ran["id"].as_str().unwrap(), &["--tools", "read_file"]).exit(1);
    assert_eq!(other.error()["code"], "REPLAY_MISMATCH");
}

#[test]
fn a_run_that_ended_at_max_time_replays_up_to_there() {
    let sum = || calls("calculate", &json!({"expression": "6*7"}));
    let read = || calls("read_file", &read_file());
    let attach = ["--attach", "note.txt"];
    for (end, replies) in [
        (&["--config", "no_wrap_up=true"][..], vec![read(), sum(), hesitates("Half of")]),
        (&[], vec![read(), sum(), hesitates("Half of"), says("Summed up.")]),
    ] {
        let words = [&attach[..], &["--max-time", "2s"], end].concat();
        let (model, id) = ran(&words, replies, 6);
        let told = replay(&model, &id, &attach).ok().json();
        assert_eq!((&told["same"], &told["difference"]), (&json!(true), &Value::Null), "{end:?}");
        assert_eq!(told["replayed"], 2, "{end:?}: {told}");
        let text = model.env.run(["runs", "replay", &id, "--attach", "note.txt"]).ok();
        assert!(text.err.contains("2 exchanges, 2 tool calls, up to its time limit"), "{text}");
        // A difference is found at the start.
        let other = replay(&model, &id, &[]).exit(1);
        assert_eq!(
            (other.error()["code"].clone(), &other.json()["replayed"]),
            (json!("REPLAY_MISMATCH"), &json!(1))
        );
    }
}
