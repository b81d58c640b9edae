//! `toolpost call`: each form of arguments and each option.

use serde_json::{Value, json};
use toolpost_sandbox::{Host, Level};

use crate::support::{TestEnv, fits};

#[track_caller]
fn record(env: &TestEnv, words: &[&str], exit: i32) -> Value {
    let finished = env.run(["call"].iter().chain(words).chain(&["--format", "jsonl"])).exit(exit);
    let record = finished.record();
    fits("call-record", &record);
    record
}

#[test]
pub(crate) fn arguments() {
    let env = TestEnv::new();
    env.write("arguments.json", r#"{"expression": "6*7"}"#);
    for words in [
        &["call", "calculate", "expression=6*7"][..],
        &["call", "builtin:calculate", "expression=6*7"],
        &["call", "builtin", "calculate", "expression=6*7"],
        &["call", "calculate", r#"{"expression": "6*7"}"#],
        &["call", "calculate", "@arguments.json"],
    ] {
        assert_eq!(env.run(words).ok().out, "42\n", "{words:?}");
    }
    assert_eq!(env.run_with(r#"{"expression": "6*7"}"#, ["call", "calculate", "-"]).ok().out, "42\n");
}

#[test]
fn a_value_has_the_type_of_its_parameter() {
    let env = TestEnv::new();
    env.write("1", "the file is named 1\nsecond\n");
    let text = env.run(["call", "read_file", "path=1", "limit=1"]).ok();
    assert!(text.out.contains("the file is named 1") && !text.out.contains("second"), "{text}");
    let object = env.run(["call", "calculate", "expression=a+b", r#"variables={"a": 1, "b": 2}"#]).ok();
    assert_eq!(object.out, "3\n");
    // Everything after the first `=` is the value.
    env.run(["call", "write_file", "path=x", "content=a=b"]).ok();
    assert_eq!(env.read("x"), "a=b");
}

#[test]
pub(crate) fn workdir() {
    let env = TestEnv::new();
    env.write("there/file.txt", "in there");
    assert!(
        env.run(["call", "read_file", "path=file.txt", "--workdir", "there"]).ok().out.contains("in there")
    );
    env.run(["call", "read_file", "path=file.txt"]).exit(1);
}

#[test]
pub(crate) fn timeout() {
    let env = TestEnv::new();
    let sleep = ["run_command", r#"{"argv": ["sleep", "100"]}"#];
    let record = record(&env, &[&sleep[..], &["--timeout", "800ms"]].concat(), 4);
    assert_eq!(record["sandbox"]["verdict"]["kind"], "timeout");
    assert!(record["duration_ms"].as_f64().unwrap() < 60_000.0, "{record}");
}

/// Failed code is a result for a model, but a failure for a shell.
#[test]
fn code_that_fails_is_a_failure_of_the_call() {
    let env = TestEnv::new();
    for (argv, status) in [(r#"{"argv": ["true"]}"#, 0), (r#"{"argv": ["false"]}"#, 1)] {
        env.run(["call", "run_command", argv]).exit(status);
    }
}

#[test]
pub(crate) fn meta() {
    let env = TestEnv::new();
    let record = record(&env, &["calculate", "expression=1", "--meta", "ticket=T-1", "--meta", "why=a=b"], 0);
    assert_eq!(record["metadata"], json!({ "ticket": "T-1", "why": "a=b" }));
}

#[test]
pub(crate) fn dry_run() {
    let env = TestEnv::new();
    let finished = env.run(["call", "write_file", "path=new.txt", "content=x", "--dry-run"]).ok();
    assert!(!env.path("new.txt").exists(), "{finished}");
    assert!(!finished.out.trim().is_empty(), "{finished}");
    env.run(["call", "write_file", "content=x", "--dry-run"]).exit(1);
}

const SUM: [&str; 3] = ["call", "calculate", "expression=1"];

#[test]
pub(crate) fn ask() {
    let env = TestEnv::new();
    env.run(SUM.iter().chain(&["--no-input"])).ok();
    let error = env.run(SUM.iter().chain(&["--no-input", "--ask", "--json"])).exit(5).error();
    assert_eq!(error["code"], "PERMISSION");
    assert!(error["hints"].to_string().contains("--approve calculate"), "{error}");
}

#[test]
pub(crate) fn approve() {
    let env = TestEnv::new();
    assert_eq!(env.run(SUM.iter().chain(&["--no-input", "--ask", "--approve", "calculate"])).ok().out, "1\n");
}

#[test]
pub(crate) fn yes() {
    let env = TestEnv::new();
    assert_eq!(env.run(SUM.iter().chain(&["--no-input", "--ask", "--yes"])).ok().out, "1\n");
}

#[test]
pub(crate) fn no_input() {
    let env = TestEnv::new();
    let words = SUM.iter().chain(&["--ask"]);
    let asked = env.answering(&["y\n"], words.clone()).ok();
    assert!(asked.out.contains("Approve calculate") && asked.out.contains("yes / session / no?"), "{asked}");
    env.answering(&["n\n"], words.clone()).exit(5);
    let silent = env.on_terminal("y\n", words.chain(&["--no-input"])).exit(5);
    assert!(!silent.out.contains("yes / session / no?"), "{silent}");
}

#[test]
pub(crate) fn level() {
    let env = TestEnv::new();
    for level in [Level::Standard, Level::Strict] {
        let availability = Host::probe().availability(level).unwrap();
        if !availability.available {
            println!("SKIP level {level}: {:?}", availability.reason);
            continue;
        }
        let record = record(&env, &["run_code", "language=bash", "code=true", "--level", level.name()], 0);
        assert_eq!(record["sandbox"]["report"]["requested"], level.name());
    }
}

#[test]
pub(crate) fn verbose() {
    let env = TestEnv::new();
    let call = ["call", "run_code", "language=bash", "code=echo loud"];
    let plain = env.run(call).ok();
    assert!(!plain.err.contains("INFO"), "{plain}");
    let verbose = env.run(call.iter().chain(&["-v"])).ok();
    assert!(verbose.err.contains("INFO toolpost::call: call finished"), "{verbose}");
}

#[test]
fn the_result_as_json_is_an_envelope() {
    let env = TestEnv::new();
    let good = env.run(["call", "calculate", "expression=6*7", "--json"]).ok();
    fits("envelope", &good.json());
    assert_eq!(good.json()["status"], "success");
    assert_eq!(good.err, "");
    let bad = env.run(["call", "calculate", "expression=6/0", "--json"]).exit(1);
    fits("envelope", &bad.json());
    assert_eq!(bad.json()["status"], "error");
    assert_eq!(bad.error()["code"], "INVALID_INPUT");
}

#[test]
fn events_come_as_json_lines() {
    let env = TestEnv::new();
    let lines = env.run(["call", "calculate", "expression=6*7", "--format", "jsonl"]).ok().lines();
    for line in &lines {
        fits("event", line);
    }
    let kinds: Vec<_> = lines.iter().filter_map(|line| line["type"].as_str()).collect();
    assert_eq!(kinds, ["call.started", "call.finished"]);
}

#[test]
fn an_error_is_printed_once() {
    let env = TestEnv::new();
    let finished = env.run(["call", "calculate", "expression=6/0"]).exit(1);
    assert_eq!(finished.err.matches("division by zero").count(), 1, "{finished}");
}

#[test]
fn an_unknown_answer_repeats_the_prompt() {
    let env = TestEnv::new();
    let words = ["call", "calculate", "expression=2", "--ask"];
    let asked = env.answering(&["?\n", "hm\n", "YES\n"], words).ok();
    assert_eq!(asked.out.matches("`yes` approves this call").count(), 2, "{asked}");
    let asked = env.answering(&["b\n", "c\n", "d\n", "e\n"], words).exit(5);
    assert_eq!(asked.out.matches("`yes` approves this call").count(), 3, "{asked}");
    assert!(!env.answering(&["\n"], words).exit(5).out.contains("`yes` approves"));
}

/// JSON Schema accepts `2.0` as an integer, and models write it: every tool gets 2.
#[test]
fn whole_floats_are_integers() {
    let env = TestEnv::new();
    env.write("d/f.txt", "1\n2\n3\n");
    let limited = env.run(["call", "read_file", r#"{"path": "f.txt", "limit": 2.0}"#, "--workdir", "d"]).ok();
    assert!(limited.out.contains('2') && !limited.out.contains('3'), "{limited}");
    env.run(["call", "command:find", r#"{"max_depth": 1.0}"#, "--workdir", "d"]).ok();
    let half = env.run(["call", "read_file", r#"{"path": "f.txt", "limit": 2.5}"#, "--workdir", "d"]).exit(1);
    assert!(half.err.contains("limit"), "{half}");
    let turns = json!({"turns": [
        {"calls": [{"tool": "read_file", "args": {"path": "f.txt", "limit": 2.0}}]},
        {"text": "{{ last.text }}"},
    ]});
    env.write("model.yaml", turns.to_string());
    let words =
        ["run", "-p", "x", "-m", "script:model.yaml", "--tools", "read_file", "--workdir", "d", "--yes"];
    let run = env.run(words).ok();
    assert!(run.out.contains('2') && !run.err.contains("invalid type"), "{run}");
}
