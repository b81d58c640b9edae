//! Tests of commands that are killed with SIGKILL, and of their resumption.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use serde_json::{Value, json};
use toolpost_testkit::provider::Reply;

use crate::support::{Anthropic, Running, calls, eventually, hesitates, processes, says};

fn world(replies: Vec<Reply>) -> Anthropic {
    let mut model = Anthropic::start(replies);
    // A killed command cleans nothing up.
    model.env = model.env.with("TERM", "xterm").leaving_files();
    model
}

#[track_caller]
fn kill(running: Running) {
    running.signal(Signal::KILL);
    let finished = running.finish();
    assert_eq!(finished.status.code(), None, "{finished}");
}

fn messages(model: &Anthropic) -> String {
    model.bodies().last().unwrap()["messages"].to_string()
}

/// The newest run, as `runs` shows it.
fn youngest(model: &Anthropic) -> (Value, String) {
    let mut list = model.env.run(["runs", "ls", "--json"]).ok().json();
    let id = list["runs"][0]["id"].as_str().unwrap().to_owned();
    let short = list["runs"][0].as_object_mut().unwrap().remove("short_id").unwrap();
    let shown = model.env.run(["runs", "show", &id, "--json"]).ok().json();
    assert_eq!(shown["summary"], list["runs"][0]);
    let page = model.env.run(["runs", "show", &id]).ok().out;
    assert!(
        model.env.run(["runs", "ls"]).ok().out.lines().next().unwrap().starts_with(short.as_str().unwrap())
    );
    (shown, page)
}

#[test]
fn killed_in_the_middle_of_an_answer() {
    let model = world(vec![says("One."), hesitates("Half of"), says("Done.")]);
    model.env.run(["run", "-p", "first"]).ok();
    let running = model.env.start(["run", "-p", "second", "--continue"]);
    eventually("the answer begins", || model.bodies().len() == 2);
    assert_eq!(youngest(&model).0["summary"]["state"], "running");
    kill(running);
    let (shown, page) = youngest(&model);
    let summary = &shown["summary"];
    assert_eq!((&summary["state"], &summary["title"]), (&json!("interrupted"), &json!("second")));
    assert_eq!((&summary["exchanges"], &shown["record"]), (&json!(0), &Value::Null));
    assert!(page.contains("interrupted"), "{page}");
    assert_eq!(model.env.run(["run", "-p", "third", "--continue"]).ok().out, "Done.\n");
    let messages = messages(&model);
    for said in ["first", "One.", "second", "third"] {
        assert!(messages.contains(said), "{said}: {messages}");
    }
}

#[test]
fn the_directory_of_a_killed_run_is_removed_by_a_later_one() {
    let model = world(vec![hesitates("Half of"), hesitates("Half of"), says("Done."), says("Done.")]);
    let directories = || -> BTreeSet<PathBuf> {
        let entries = std::fs::read_dir(model.env.path("../tmp")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let begun = |requests| {
        let running = model.env.start(["run", "-p", "x"]);
        eventually("the answer begins", || model.bodies().len() == requests);
        running
    };
    kill(begun(1));
    let left = directories();
    // Its working directory, and that of whole outputs.
    assert_eq!(left.len(), 2, "{left:?}");
    let living = begun(2);
    let held: BTreeSet<_> = directories().difference(&left).cloned().collect();
    // It stays for a while for inspection.
    model.env.run(["run", "-p", "x"]).ok();
    assert!(directories().is_superset(&left), "{:?}", directories());
    for directory in directories().iter().flat_map(|outer| [outer.clone(), outer.join("work")]) {
        let long_ago = SystemTime::now() - Duration::from_hours(2);
        if directory.exists() {
            File::open(directory).unwrap().set_modified(long_ago).unwrap();
        }
    }
    model.env.run(["run", "-p", "x"]).ok();
    assert_eq!(directories(), held);
    kill(living);
}

#[test]
fn killed_in_the_middle_of_a_tool_call() {
    let sleep = json!({"argv": ["sleep", "86413"]});
    let model = world(vec![
        says("One."),
        calls("calculate", &json!({"expression": "6*7"})),
        calls("run_command", &sleep),
        says("Done."),
    ]);
    model.env.run(["run", "-p", "first"]).ok();
    let words = ["run", "-p", "second", "--continue", "--tools", "calculate,run_command", "--yes"];
    let running = model.env.start(words);
    eventually("the tool runs", || !processes("86413").is_empty());
    kill(running);
    eventually("what it started is gone", || processes("86413").is_empty());
    let (shown, page) = youngest(&model);
    let summary = &shown["summary"];
    assert_eq!(summary["state"], "interrupted");
    assert_eq!(
        (&summary["iterations"], &summary["exchanges"], &summary["tool_calls"]),
        (&json!(2), &json!(2), &json!(1))
    );
    assert_eq!(summary["usage"]["output_tokens"], 10);
    assert_eq!(shown["calls"][0]["arguments"], json!({"expression": "6*7"}));
    assert!(page.contains("interrupted") && page.contains("calculate") && page.contains("6*7"), "{page}");
    assert_eq!(model.env.run(["run", "-p", "third", "--continue"]).ok().out, "Done.\n");
    let messages = messages(&model);
    for said in ["first", "One.", "second", "the tool may have run", "third"] {
        assert!(messages.contains(said), "{said}: {messages}");
    }
    // It is a valid recording as far as it goes.
    let id = summary["id"].as_str().unwrap();
    assert_eq!(model.env.run(["runs", "export", id, "killed.jsonl", "--json"]).ok().json()["exchanges"], 2);
}

#[test]
fn a_killed_conversation_resumes() {
    let model = world(vec![says("One."), hesitates("Half of"), says("Done.")]);
    let (screen, running) = model.env.start_on_terminal("", ["chat"]);
    screen.wait_for("\u{1b}[?2004h", 1);
    screen.press("first\r");
    screen.wait_for("\u{1b}[?2004h", 2);
    screen.press("second\r");
    screen.wait_for("Half of", 1);
    kill(running);
    assert_eq!(youngest(&model).0["summary"]["state"], "interrupted");
    let finished = model.env.run_with("third\n", ["chat", "--continue"]).ok();
    assert_eq!(finished.out, "Done.\n", "{finished}");
    let messages = messages(&model);
    for said in ["first", "One.", "second", "third"] {
        assert!(messages.contains(said), "{said}: {messages}");
    }
}
