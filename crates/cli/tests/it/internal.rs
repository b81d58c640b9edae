//! Causes of failures for authors, hidden from callers: causes, records, silent and exited servers.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use toolpost_sandbox::{Host, Level};

use crate::serve::{free, get, post};
use crate::support::{TestEnv, eventually};

/// Text that only the author may read.
const CAUSE: &str = "canary-of-a-cause-71b0";
/// The value of a granted variable.
const KEY: &str = "canary-of-a-key-5f2e";

/// A tool program that fails inside and explains the failure on stderr.
const LOST: &str = r#"#!/usr/bin/env python3
import json, os, sys
if "--discover" in sys.argv:
    tools = [{"name": name, "summary": name, "streaming": False, "session_mode": False, "schema": {"type": "object"}} for name in ("lost", "fine", "rejected")]
    print(json.dumps({"name": "p", "version": "1", "protocol": "0.1", "tools": tools, "resources": [], "prompts": []}))
elif sys.argv[1] == "fine":
    print(json.dumps({"status": "success", "result": {"a": 1}}))
elif sys.argv[1] == "rejected":
    sys.exit("HTTP Error 401: Unauthorized")
else:
    print("error: call c0ffee: the index cannot be opened\n  caused by: CAUSE", os.environ.get("KEY"), file=sys.stderr)
    print("  caused by: deepest", file=sys.stderr)
    context = {"call": "c0ffee"}
    print(json.dumps({"status": "error", "error": {"code": "INTERNAL", "message": "failed inside", "recoverable": False, "context": context}}))
    sys.exit(1)
"#;

fn has_strict(test: &str) -> bool {
    let has = Host::probe().availability(Level::Strict).is_some_and(|level| level.available);
    if !has {
        println!("SKIP {test}: this host has no namespaces");
    }
    has
}

fn world() -> TestEnv {
    use std::os::unix::fs::PermissionsExt as _;
    let env = TestEnv::new().with("KEY", KEY);
    let path = env.write("lost.py", LOST.replace("CAUSE", CAUSE));
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    env
}

/// The call ID in an error of a remote caller.
fn id_in(text: &str) -> &str {
    let (_, rest) = text.split_once("record of call ").unwrap_or_else(|| panic!("no id: {text}"));
    rest.get(..26).unwrap()
}

#[track_caller]
fn shows_the_chain(env: &TestEnv, id: &str) {
    let shown = env.run(["runs", "show", id]).ok();
    for text in ["the index cannot be opened", CAUSE, "deepest"] {
        assert!(shown.out.contains(text), "{text}: {shown}");
    }
    assert!(!shown.out.contains(KEY), "{shown}");
}

#[test]
fn a_call_prints_and_stores_the_causes_of_an_internal_error() {
    if !has_strict("a_call_prints_and_stores_the_causes_of_an_internal_error") {
        return;
    }
    let env = world();
    let words = ["call", "./lost.py", "lost", "--secret-raw", "KEY", "--json"];
    let failed = env.run(words).exit(1);
    let error = failed.error();
    assert_eq!(error["message"], "the index cannot be opened", "{failed}");
    assert_eq!(error["causes"], json!([format!("{CAUSE} [secret]"), "deepest"]), "{failed}");
    // The envelope of a remote caller.
    assert!(!failed.out.contains(CAUSE) && !failed.out.contains("index"), "{failed}");
    let id = id_in(&failed.out);
    assert!(error["hints"].to_string().contains(&format!("`toolpost runs show {id}`")), "{failed}");
    shows_the_chain(&env, id);
    shows_the_chain(&env, &id[..12]);
    let stored = env.run(["runs", "show", id, "--json"]).ok().json();
    assert_eq!(stored["record"]["tool_calls"][0]["id"], id);

    // Calls are listed apart from runs, but removed alike.
    assert_eq!(env.run(["runs", "ls"]).ok().out, "");
    let listed = env.run(["runs", "ls", "--all", "--json"]).ok().json();
    assert_eq!(listed["runs"][0]["id"], id, "{listed}");
    env.run(["runs", "rm", id]).ok();
    env.run(["runs", "show", id]).exit(1);
}

#[test]
fn a_call_is_recorded_unless_no_save_is_set() {
    let env = TestEnv::new();
    env.run(["call", "calculate", "expression=6*7", "--config", "no_save=true"]).ok();
    env.run(["call", "calculate", "expression=6*7", "--validate"]).ok();
    // Without a record there is no store.
    env.run(["runs", "ls", "--all"]).exit(1);
    env.run(["call", "calculate", "expression=6*7"]).ok();
    let listed = env.run(["runs", "ls", "--all", "--json"]).ok().json();
    let runs = listed["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 1, "{listed}");
    assert_eq!((&runs[0]["success"], &runs[0]["tool_calls"]), (&json!(true), &json!(1)), "{listed}");
    let shown = env.run(["runs", "show", runs[0]["id"].as_str().unwrap()]).ok();
    assert!(shown.out.contains("calculate") && shown.out.contains("6*7"), "{shown}");
}

#[test]
fn a_remote_caller_gets_the_id_of_an_internal_error_alone() {
    if !has_strict("a_remote_caller_gets_the_id_of_an_internal_error_alone") {
        return;
    }
    let env = world();
    let address = free();
    let words = ["serve", "./lost.py", "--http", &address.to_string(), "--no-token"].map(str::to_owned);
    let running = env.start(words.iter().map(String::as_str).chain(["--secret-raw", "KEY"]));
    eventually("it answers", || get(address, "/health", "").is_some_and(|answer| answer.ends_with("OK")));
    let answer = post(address, "tools/call", json!({ "name": "lost", "arguments": {} }), "").unwrap();
    running.signal(Signal::TERM);
    let finished = running.finish().ok();
    let answer = answer.to_string();
    for text in [CAUSE, "index", "deepest", KEY] {
        assert!(!answer.contains(text), "{text}: {answer}");
    }
    let id = id_in(&answer);
    // The operator reads it in the log and finds it later.
    for text in [id, CAUSE, "deepest", "the index cannot be opened"] {
        assert!(finished.err.contains(text), "{text}: {finished}");
    }
    assert!(!finished.err.contains(KEY), "{finished}");
    shows_the_chain(&env, id);
}

#[test]
fn a_model_gets_the_id_of_an_internal_error_alone() {
    if !has_strict("a_model_gets_the_id_of_an_internal_error_alone") {
        return;
    }
    let env = world();
    env.write(
        "say.yaml",
        "turns:\n  - calls: [{ tool: lost, args: {} }]\n  - text: \"seen: {{ last.text }}\"\n",
    );
    let words =
        ["run", "-p", "x", "--model", "script:say.yaml", "--tools", "./lost.py", "--secret-raw", "KEY"];
    let finished = env.run(words).ok();
    for text in [CAUSE, "index", "deepest"] {
        assert!(!finished.out.contains(text), "{text}: {finished}");
    }
    shows_the_chain(&env, id_in(&finished.out));
    shows_the_chain(&env, "last");
    env.run(["runs", "export", "last", "sent.jsonl"]).ok();
    let sent = env.read("sent.jsonl");
    assert!(sent.contains("INTERNAL") && !sent.contains(CAUSE), "{sent}");
}

/// One server in each command.
fn commands(env: &TestEnv, server: &str) -> [Vec<String>; 4] {
    env.write("say.yaml", "turns:\n  - text: hello\n");
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    [
        words(&["tools", server]),
        words(&["call", server, "x"]),
        words(&["run", "-p", "x", "--model", "script:say.yaml", "--tools", server]),
        words(&["serve", "calculate", server]),
    ]
}

#[test]
fn a_silent_server_is_named_after_10_s() {
    let env = TestEnv::new().leaving_files();
    env.write("silent.sh", "echo 'loading the index' >&2; sleep 100");
    let begun = Instant::now();
    let running: Vec<_> = commands(&env, "stdio:sh silent.sh")
        .into_iter()
        .enumerate()
        .map(|(number, words)| {
            let file = format!("errors-{number}");
            (env.start_with_errors_in(&file, &words), file, words)
        })
        .collect();
    std::thread::sleep(Duration::from_secs(8).saturating_sub(begun.elapsed()));
    for (_, file, words) in &running {
        let errors = env.read(file);
        let is_early = begun.elapsed() < Duration::from_secs(10);
        assert!(!is_early || errors.is_empty() || errors.starts_with("serving"), "{words:?}: {errors}");
    }
    for (_, file, words) in &running {
        eventually("it is named", || env.read(file).contains("loading the index"));
        let errors = env.read(file);
        assert!(errors.contains("has not answered `initialize`"), "{words:?}: {errors}");
        assert!(errors.contains("the server `sh`"), "{words:?}: {errors}");
    }
    for (running, ..) in running {
        running.signal(Signal::INT);
    }
}

#[test]
fn every_command_reports_why_a_server_exited() {
    let env = TestEnv::new();
    env.write("ends.sh", "echo 'no index here' >&2; exit 3");
    for words in commands(&env, "stdio:sh ends.sh") {
        let begun = Instant::now();
        let failed = env.run_with("", &words);
        // The limit of a start is 30 s.
        assert!(begun.elapsed() < Duration::from_secs(10), "{words:?}: {:?}", begun.elapsed());
        for text in ["exited with status 3", "no index here", "--readable PATH"] {
            assert!(failed.err.contains(text), "{text}: {failed}");
        }
    }
}

#[test]
fn verbose_prints_visible_host_paths() {
    if !has_strict("verbose_prints_visible_host_paths") {
        return;
    }
    let env = world();
    let shown = |words: &[&str], line: &str| {
        let quiet = env.run(words);
        assert!(!quiet.err.contains(line), "{quiet}");
        let verbose = env.run(words.iter().chain(&["-v"]));
        assert!(verbose.err.contains(line), "{line}: {verbose}");
    };
    let directory = env.path("").canonicalize().unwrap();
    shown(&["call", "./lost.py", "fine"], &format!("shown: {}", directory.display()));
    env.write("ends.sh", "exit 3");
    std::fs::create_dir(env.path("data")).unwrap();
    let data = directory.join("data").display().to_string();
    shown(&["tools", "stdio:sh ends.sh", "--readable", "data"], &format!("shown to sh: {data}"));
}

#[test]
fn a_rejected_placeholder_names_the_raw_option() {
    if !has_strict("a_rejected_placeholder_names_the_raw_option") {
        return;
    }
    let env = world();
    let hint = "pass `--secret-raw KEY`";
    let words = ["call", "./lost.py", "rejected", "--allow-host", "api.example"];
    let failed = env.run(words.iter().chain(&["--secret", "KEY"]));
    assert!(failed.err.contains("401") && failed.err.contains(hint), "{failed}");
    let raw = env.run(words.iter().chain(&["--secret-raw", "KEY"]));
    assert!(raw.err.contains("401") && !raw.err.contains(hint), "{raw}");
}

#[test]
fn a_program_without_tools_has_a_fix() {
    let env = TestEnv::new();
    let failed = env.run(["call", "/bin/true", "--json"]).exit(1);
    let error = failed.error();
    assert_eq!(error["code"], "DEPENDENCY", "{failed}");
    let hints = error["hints"].to_string();
    assert!(
        hints.contains("toolpost call run_command") && hints.contains("toolpost init command"),
        "{failed}"
    );
    assert!(error["causes"].to_string().contains("printed nothing"), "{failed}");
    // The hint works.
    let argv = json!({ "argv": [std::fs::canonicalize("/bin/true").unwrap()] }).to_string();
    env.run(["call", "run_command", &argv]).ok();
}

#[test]
fn errors_of_compilers_reach_the_user() {
    let env = TestEnv::new();
    for (name, code, error) in [
        ("bad.rs", "fn main() { let x: i32 = \"a\"; }", "E0308"),
        ("bad.c", "int main(void) { return undeclared; }", "undeclared"),
        ("bad.go", "package main\nfunc main() { undeclared() }\n", "undeclared"),
        ("bad.ts", "const x: = 1;", "bad"),
    ] {
        env.write(name, code);
        let failed = env.run(["exec", name]);
        if failed.err.contains("error: no `") {
            println!("SKIP errors_of_compilers_reach_the_user {name}: {}", failed.err);
            continue;
        }
        let failed = failed.exit(1);
        assert!(failed.err.contains(error) || failed.err.contains("Error"), "{name}: {failed}");
    }
}

#[test]
fn the_egress_policy_setting_applies_to_exec() {
    let env = TestEnv::new();
    env.write("way.toml", "hosts = [\"*\"\n");
    let wrong = env.run(["exec", "--config", "egress_policy=way.toml", "--", "true"]).exit(2);
    assert!(wrong.err.contains("way.toml"), "{wrong}");
    let missing: Value =
        env.run(["exec", "--config", "egress_policy=other.toml", "--json", "--", "true"]).exit(2).error();
    assert!(missing["message"].to_string().contains("other.toml"), "{missing}");
}
