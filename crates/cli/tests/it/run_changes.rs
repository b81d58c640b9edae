//! Tests of changes in a working directory: listed once, undone as a whole, and not lost beside other commands.

use std::time::Duration;

use serde_json::json;
use toolpost_sandbox::{Host, Level};

use crate::support::TestEnv;

fn prepared() -> Option<TestEnv> {
    if !Host::probe().availability(Level::Strict).is_some_and(|entry| entry.available) {
        println!("SKIP run_changes: this host gives no namespaces, and so no private layer");
        return None;
    }
    let env = TestEnv::new();
    for number in 0..12 {
        env.write(&format!("d/f{number}"), number.to_string());
    }
    Some(env)
}

fn call(tool: &str, arguments: &serde_json::Value) -> serde_json::Value {
    json!({ "calls": [{ "tool": tool, "args": arguments }] })
}

fn sh(script: &str) -> serde_json::Value {
    call("run_command", &json!({ "argv": ["sh", "-c", script] }))
}

const RUN: [&str; 9] =
    ["run", "-p", "go", "--model", "script:s.yaml", "--tools", "write_file,run_command", "--workdir", "d"];

#[test]
fn a_run_lists_its_changes_once_and_undo_reverts_them() {
    let Some(env) = prepared() else { return };
    let turns = [
        call("write_file", &json!({ "path": "sub/notes.md", "content": "hi", "create_directories": true })),
        call("write_file", &json!({ "path": "f1", "content": "new" })),
        sh("echo more >> f2; rm f3; echo x >> f1"),
        json!({ "text": "done" }),
    ];
    env.write("s.yaml", json!({ "turns": turns }).to_string());
    let ran = env.run(RUN).ok();
    for line in ["created d/sub/notes.md\n", "changed d/f1, d/f2\n", "deleted d/f3\n"] {
        assert_eq!(ran.err.matches(line).count(), 1, "{line}{ran}");
    }
    assert!(!env.path("d/f1.backup").exists());
    let shown = env.run(["runs", "show", "last", "--json"]).ok().json();
    let changes = &shown["record"]["changes"];
    assert_eq!(changes["created"].as_array().unwrap().len(), 1, "{changes}");
    let id = changes["undo"].as_str().unwrap();
    assert!(ran.err.contains(&format!("`toolpost undo {id}`")), "{ran}");
    assert!(env.run(["runs", "show", "last"]).ok().out.contains("deleted "));
    assert!(env.run(["undo", id]).ok().err.contains("reverted 6 changes"));
    let read = |name: &str| env.read(&format!("d/{name}"));
    assert_eq!((read("f1"), read("f2"), read("f3")), ("1".into(), "2".into(), "3".into()));
    assert!(!env.path("d/sub").exists());
}

#[test]
fn a_run_that_deletes_everything_is_held() {
    let Some(env) = prepared() else { return };
    let turns = [sh("rm *"), json!({ "text": "done", "expect": { "result_contains": "held" } })];
    env.write("s.yaml", json!({ "turns": turns }).to_string());
    let ran = env.run(RUN).ok();
    let shown = env.run(["runs", "show", "last", "--json"]).ok().json();
    let id = shown["record"]["changes"]["held"][0].as_str().unwrap().to_owned();
    assert!(ran.err.contains(&format!("`toolpost apply {id}`")), "{ran}");
    assert!(env.path("d/f11").exists());
    env.run(["apply", &id]).ok();
    assert!(!env.path("d/f11").exists());
}

#[test]
fn a_lost_change_is_exit_5_for_every_caller() {
    let Some(env) = prepared() else { return };
    // It prints, so that its output would be printed twice, and is not repeated.
    let script = "echo go; while [ ! -e /tmp/never ] && [ \"$(cat f0)\" = 0 ]; do sleep 0.05; done; echo mine > f0; echo own > own";
    let running = env.start(["exec", "--workdir", "d", "--timeout", "20s", "--", "sh", "-c", script]);
    std::thread::sleep(Duration::from_millis(500));
    env.write("d/f0", "by the user");
    let ended = running.finish().exit(5);
    assert!(ended.err.contains("not applied: f0 (conflict") && ended.err.contains("error:"), "{ended}");
    assert_eq!((env.read("d/f0"), env.read("d/own")), ("by the user".into(), "own\n".into()));
    assert!(ended.err.contains("held: "), "{ended}");
}

#[test]
fn commands_that_append_at_the_same_time_lose_nothing() {
    let Some(env) = prepared() else { return };
    let argv =
        |number: usize| format!("argv=[\"sh\",\"-c\",\"echo {number} >> log; echo {number} > own{number}\"]");
    let running: Vec<_> =
        (0..8).map(|number| env.start(["call", "run_command", &argv(number), "--workdir", "d"])).collect();
    for one in running {
        one.finish().ok();
    }
    assert_eq!(env.read("d/log").lines().count(), 8);
    assert!((0..8).all(|number| env.path(&format!("d/own{number}")).exists()));
    let flow = json!({
        "kind": "flow", "name": "f",
        "steps": [{ "id": "m", "map": (0..40).map(|number| number.to_string()).collect::<Vec<_>>(), "as": "item", "max_parallel": 16,
            "steps": [{ "id": "a", "command": ["sh", "-c", "echo $1 >> map.log", "sh", "${{ item }}"] }] }],
    });
    env.write("d/f.yaml", flow.to_string());
    let env = env.inside("d");
    env.run(["trust", "f.yaml"]).ok();
    env.run(["flow", "run", "f.yaml", "--yes"]).ok();
    assert_eq!(env.read("map.log").lines().count(), 40);
}
