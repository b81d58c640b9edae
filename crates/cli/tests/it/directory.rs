//! Changes of code in a working directory: applied, reviewed, discarded, undone, allowed.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use toolpost_sandbox::{Host, Level};

use crate::support::{Finished, TestEnv, eventually};

/// Writes an ordinary and a protected file.
const WRITES: &str = "echo new > made; echo x > .envrc; rm old";

fn prepared() -> Option<TestEnv> {
    if !Host::probe().availability(Level::Strict).is_some_and(|entry| entry.available) {
        println!("SKIP directory: this host gives no namespaces, and so no private layer");
        return None;
    }
    let env = TestEnv::new();
    env.write("d/old", "old");
    Some(env)
}

fn exec(env: &TestEnv, words: &[&str]) -> Finished {
    let own = ["exec", "--workdir", "d"].iter().chain(words).chain(&["--", "sh", "-c", WRITES]);
    env.run(own)
}

/// The existence of the new, the protected and the old file.
fn there(env: &TestEnv) -> [bool; 3] {
    ["d/made", "d/.envrc", "d/old"].map(|name| env.path(name).exists())
}

/// The ID in a command's output.
fn id(finished: &Finished) -> String {
    let (_, rest) = finished.err.split_once("toolpost apply ").unwrap();
    rest.chars().take_while(char::is_ascii_hexdigit).collect()
}

#[test]
fn at_most_20_artifacts_are_printed_and_no_denied_one() {
    let Some(env) = prepared() else { return };
    let script = "for n in $(seq 30); do echo x > f$n; done; echo x > .envrc";
    let finished = env.run(["exec", "--workdir", "d", "--", "bash", "-c", script]).ok();
    let lines: Vec<&str> = finished.err.lines().filter(|line| line.starts_with("made ")).collect();
    assert_eq!(lines.len(), 21, "{finished}");
    assert_eq!(lines[20], "made 10 more files; `--json` lists them");
    assert!(!finished.err.contains("made .envrc"), "{finished}");
    let finished =
        env.run(["exec", "--workdir", "d", "--", "sh", "-c", "echo x > .envrc; echo y > one"]).ok();
    assert!(
        finished.err.contains("made one (2 bytes)") && !finished.err.contains("made .envrc"),
        "{finished}"
    );
}

#[test]
pub(crate) fn changes_are_applied_except_protected_paths() {
    let Some(env) = prepared() else { return };
    let finished = exec(&env, &[]).ok();
    assert_eq!(there(&env), [true, false, false], "{finished}");
    assert!(finished.err.contains("not applied: .envrc (protected: direnv"), "{finished}");
    // Without other changes, the command says so.
    let error =
        env.run(["exec", "--workdir", "d", "--json", "--", "sh", "-c", "echo x > .envrc"]).exit(5).error();
    assert_eq!(error["code"], "PROTECTED");
}

#[test]
pub(crate) fn review() {
    let Some(env) = prepared() else { return };
    let held = exec(&env, &["--review"]).ok();
    assert_eq!(there(&env), [false, false, true], "{held}");
    for text in ["+ made", "+new", "- old", "changes are held"] {
        assert!(held.err.contains(text), "{text}: {held}");
    }
    let id = id(&held);
    assert!(env.run(["apply"]).ok().out.contains(&id));
    let again = env.run(["apply", &id, "--review"]).ok();
    assert_eq!(there(&env), [false, false, true], "{again}");
    for text in ["+ made", "+new", "- old"] {
        assert!(again.out.contains(text), "{text}: {again}");
    }
    let again = env.run(["apply", &id, "--review", "--json"]).ok().json();
    let decisions: Vec<_> =
        again["review"]["changes"].as_array().unwrap().iter().map(|change| &change["decision"]).collect();
    assert_eq!(decisions, ["applied", "applied", "held"], "{again}");
    env.run(["apply", &id[..6]]).ok();
    assert_eq!(there(&env), [true, false, false]);
    env.run(["undo"]).exit(2);
    env.run(["undo", &id]).ok();
    assert_eq!(there(&env), [false, false, true]);
    assert_eq!(env.read("d/old"), "old");
}

#[test]
pub(crate) fn last_is_the_last_run_of_this_directory() {
    let Some(env) = prepared() else { return };
    let run = |directory, script| {
        env.run(["exec", "--workdir", directory, "--review", "--", "sh", "-c", script]).ok();
    };
    run(".", "echo 1 > first");
    run(".", "echo 2 > second");
    run("d", "echo 3 > third");
    env.run(["apply", "last"]).ok();
    let there = || ["first", "second", "d/third"].map(|name| env.path(name).exists());
    assert_eq!(there(), [false, true, false]);
    env.run(["discard", "last"]).ok();
    for words in [&["apply", "last"], &["discard", "last"]] {
        let error = env.run(words.iter().chain(&["--json"])).exit(2).error();
        assert!(error["message"].as_str().unwrap().starts_with("no run holds changes of"), "{error}");
    }
    assert_eq!(env.run(["undo", "last"]).ok().err, "reverted 1 change\n");
    assert_eq!(there(), [false; 3]);
    assert!(env.run(["apply"]).ok().out.contains("/d  (held)"));
}

#[test]
pub(crate) fn names_in_a_review_are_escaped() {
    let Some(env) = prepared() else { return };
    let script = "printf x > \"$(printf 'a\\033[31m\\nb\\342\\200\\256')\"";
    let held = env.run(["exec", "--workdir", "d", "--review", "--", "bash", "-c", script]).ok();
    assert!(!held.err.contains('\u{1b}') && !held.err.contains('\u{202e}'), "{held}");
    assert!(held.err.lines().any(|line| line.starts_with("+ a")), "{held}");
}

#[test]
pub(crate) fn discard() {
    let Some(env) = prepared() else { return };
    exec(&env, &["--discard"]).ok();
    assert_eq!(there(&env), [false, false, true]);
    let held = id(&exec(&env, &["--review"]).ok());
    env.run(["discard", &held]).ok();
    env.run(["apply", &held]).exit(2);
    assert_eq!(there(&env), [false, false, true]);
    assert_eq!(env.run(["apply"]).ok().out, "");
}

#[test]
pub(crate) fn live() {
    let Some(env) = prepared() else { return };
    exec(&env, &["--live"]).ok();
    assert_eq!(there(&env), [true, true, false]);
}

#[test]
pub(crate) fn allow_protected() {
    let Some(env) = prepared() else { return };
    exec(&env, &["--allow-protected", ".envrc"]).ok();
    assert_eq!(there(&env), [true, true, false]);
}

#[test]
pub(crate) fn apply_allow_protected() {
    let Some(env) = prepared() else { return };
    let held = id(&exec(&env, &["--review"]).ok());
    env.run(["apply", &held, "--allow-protected", ".envrc"]).ok();
    assert_eq!(there(&env), [true, true, false]);
}

#[test]
pub(crate) fn tools_work_in_the_same_layer() {
    for (words, expected) in [
        (&[][..], [true, false, false]),
        (&["--live"], [true, true, false]),
        (&["--allow-protected", ".envrc"], [true, true, false]),
    ] {
        let arguments = json!({ "argv": ["sh", "-c", WRITES] });
        let Some(env) = prepared() else { return };
        let call = ["call", "run_command", &arguments.to_string(), "--workdir", "d"].map(str::to_owned);
        let finished = env.run(call.iter().map(String::as_str).chain(words.iter().copied())).ok();
        assert_eq!(there(&env), expected, "call {words:?} {finished}");
        let is_told = finished.out.contains("`.envrc` was not applied");
        assert_eq!(is_told, words.is_empty(), "{finished}");

        let Some(env) = prepared() else { return };
        let script = json!({ "turns": [{ "calls": [{ "tool": "run_command", "args": arguments }] }, { "text": "done" }] });
        env.write("script.yaml", script.to_string());
        let run =
            ["run", "-p", "go", "--model", "script:script.yaml", "--tools", "run_command", "--workdir", "d"];
        let finished = env.run(run.iter().chain(words).chain(&["--json"])).ok();
        assert_eq!(there(&env), expected, "run {words:?} {finished}");
        let id = finished.json()["id"].as_str().unwrap().to_owned();
        for name in ["d/made", "d/.envrc"] {
            let _ = std::fs::remove_file(env.path(name));
        }
        env.write("d/old", "old");
        let again = ["runs", "replay", &id, "--workdir", "d"];
        let finished = env.run(again.iter().chain(words)).ok();
        assert_eq!(there(&env), expected, "runs replay {words:?} {finished}");

        let Some(env) = prepared() else { return };
        let params = json!({ "name": "run_command", "arguments": arguments });
        let line = crate::serve::modern(1, "tools/call", params) + "\n";
        let serve = ["serve", "builtin:run_command", "--workdir", "d"];
        let finished = env.run_with(line, serve.iter().chain(words)).ok();
        assert_eq!(there(&env), expected, "serve {words:?} {finished}");
    }
}

#[test]
fn a_killed_run_leaves_its_changes_held_and_nothing_on_the_host() {
    let Some(env) = prepared() else { return };
    let env = env.leaving_files();
    let layers = env.path("../home/.local/state/toolpost/layers");
    let running = env.start(["exec", "--workdir", "d", "--", "sh", "-c", "echo new > made; exec sleep 600"]);
    let has_written = || {
        std::fs::read_dir(&layers)
            .is_ok_and(|entries| entries.flatten().any(|entry| entry.path().join("upper/made").exists()))
    };
    eventually("it has written", has_written);
    running.signal(Signal::KILL);
    running.finish();
    let names: Vec<_> =
        std::fs::read_dir(env.path("d")).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["old"], "no placeholder, and nothing of the run");
    eventually("its layer is free", || env.run(["apply"]).ok().out.contains("(held)"));
    let next = env.run(["exec", "--workdir", "d", "--", "true"]).ok();
    assert!(next.err.contains("held: `toolpost apply"), "{next}");
    env.run(["apply", &id(&next)]).ok();
    assert_eq!(env.read("d/made"), "new\n");
}

/// 64 commands append to one file, write one of their own and replace a third, and a third of them is killed: those that
/// end lose nothing, and what a killed one began is listed.
#[test]
fn killed_writers_lose_nothing_of_the_others() {
    let Some(env) = prepared() else { return };
    let env = env.leaving_files();
    #[expect(clippy::disallowed_methods, reason = "a longer run is asked for by hand")]
    let rounds = std::env::var("TOOLPOST_TEST_ROUNDS").map_or(1, |text| text.parse().unwrap());
    let is_killed = |number: u64| number.is_multiple_of(3);
    for round in 0..rounds {
        let directory = format!("d{round}");
        let path = |name: String| format!("{directory}/{name}");
        std::fs::create_dir(env.path(&directory)).unwrap();
        let start = |number: u64| {
            let script = format!("echo {number} >> log; echo {number} > own{number}; echo {number} > third");
            (number, env.start(["exec", "--workdir", &directory, "--", "sh", "-c", &script]))
        };
        let running: Vec<_> = (0..64).map(start).collect();
        for (number, command) in running.iter().filter(|(number, _)| is_killed(*number)) {
            // Not all in the same step of their work.
            std::thread::sleep(Duration::from_millis((number * 7 + round * 3) % 23));
            command.signal(Signal::KILL);
        }
        for (number, command) in running {
            let finished = command.finish();
            assert!(is_killed(number) || finished.status.success(), "round {round}, {number}: {finished}");
        }
        let has = |number: u64| {
            let own = env.path(&path(format!("own{number}"))).exists();
            let lines =
                env.read(&path("log".into())).lines().filter(|line| *line == number.to_string()).count();
            (lines, own)
        };
        for number in (0..64).filter(|number| !is_killed(*number)) {
            assert_eq!(has(number), (1, true), "round {round}, {number}");
        }
        let listed = env.run(["apply"]).ok().out;
        let ids = listed
            .lines()
            .filter(|line| line.contains(&directory) && !line.contains("(applied)"))
            .map(|line| line.split(' ').next().unwrap());
        let mut failed = 0;
        for id in ids {
            let finished = env.run(["apply", id]);
            failed += usize::from(!finished.status.success());
            assert!(
                finished.status.success() || finished.err.contains("conflict"),
                "round {round}: {finished}"
            );
        }
        let begun = (0..64).filter(|number| matches!(has(*number), (1, false) | (0, true))).count();
        assert!(begun <= failed, "round {round}: {begun} are there in part, {failed} are held: {listed}");
        assert_eq!(
            env.read(&path("log".into())).lines().filter(|line| line.parse::<u64>().is_err()).count(),
            0
        );
    }
}

#[test]
fn a_file_may_be_as_large_as_the_layer() {
    let Some(env) = prepared() else { return };
    let large = std::fs::File::create(env.path("d/large")).unwrap();
    large.set_len(200 << 20).unwrap();
    let append = ["--", "sh", "-c", "trap '' XFSZ; echo x >> large"];
    let exec = |words: &[&str]| env.run(["exec", "--workdir", "d"].iter().chain(words).chain(&append));
    exec(&["--max-file", "150M"]).exit(1);
    exec(&[]).ok();
    assert_eq!(env.path("d/large").metadata().unwrap().len(), (200 << 20) + 2);
}

/// A container has its project and its state on two mounts, often of one file system. The kernel moves no file between
/// them, so files are copied.
#[test]
fn changes_reach_a_project_on_another_mount() {
    let Some(env) = prepared() else { return };
    if !rustix::process::geteuid().is_root() {
        println!("SKIP changes_reach_a_project_on_another_mount: only root mounts the directory");
        return;
    }
    let reset = || {
        let _ = std::fs::remove_file(env.path("d/made"));
        env.write("d/old", "old");
        env.write("d/changed", "before");
    };
    let script = "echo new > made; echo after > changed; ln -s made link; mkdir -p deep/er; echo x > deep/er/file; rm old";
    let state = || {
        let read = |name: &str| std::fs::read_to_string(env.path(name)).unwrap_or_default();
        [read("d/made"), read("d/changed"), read("d/link"), read("d/deep/er/file"), read("d/old")]
    };
    let applied = ["new\n", "after\n", "new\n", "x\n", ""];
    let before = ["", "before", "", "", "old"];
    let run = |words: &[&str]| env.run_mounted("d", words);
    reset();
    let done = run(&["exec", "--workdir", "d", "--", "sh", "-c", script]).ok();
    assert!(!done.err.contains("not applied"), "{done}");
    assert_eq!(state(), applied, "{done}");
    let (_, undo) = done.err.split_once("toolpost undo ").unwrap();
    run(&["undo", undo.split('`').next().unwrap()]).ok();
    assert_eq!(state(), before);
    let held = run(&["exec", "--review", "--workdir", "d", "--", "sh", "-c", script]).ok();
    assert_eq!(state(), before, "{held}");
    let id = id(&held);
    run(&["apply", &id]).ok();
    assert_eq!(state(), applied);
    run(&["undo", &id]).ok();
    assert_eq!(state(), before);
    // An agent's tools, too.
    let turns = json!({"turns": [
        {"calls": [{"tool": "run_command", "args": {"argv": ["sh", "-c", script]}}]},
        {"text": "done"},
    ]});
    env.write("model.yaml", turns.to_string());
    let all =
        ["run", "-p", "x", "-m", "script:model.yaml", "--yes", "--tools", "run_command", "--workdir", "d"];
    run(&all).ok();
    assert_eq!(state(), applied);
}
