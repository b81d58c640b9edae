//! `run` and `chat` with `--review` and `--discard`: work in a private copy, settled by the user.

use rustix::process::Signal;
use serde_json::{Value, json};
use toolpost_sandbox::{Host, Level};

use crate::support::{Finished, TestEnv, eventually};

const TOOLS: &str = "write_file,read_file,run_command";

fn prepared() -> Option<TestEnv> {
    if !Host::probe().availability(Level::Strict).is_some_and(|entry| entry.available) {
        println!("SKIP review: this host gives no namespaces, and so no private layer");
        return None;
    }
    let env = TestEnv::new();
    env.write("d/old", "old");
    Some(env)
}

fn write(path: impl Into<String>, content: &str) -> Value {
    json!({ "tool": "write_file", "args": { "path": path.into(), "content": content } })
}

fn sh(script: &str) -> Value {
    json!({ "tool": "run_command", "args": { "argv": ["sh", "-c", script] } })
}

/// Lets a model make these calls in order, each with expected text of its result.
fn script(env: &TestEnv, calls: &[(Value, &str)]) {
    let mut turns: Vec<Value> = Vec::new();
    let mut expected = None;
    for (call, contains) in calls {
        turns.push(match expected.replace(contains) {
            Some(before) => json!({ "calls": [call], "expect": { "result_contains": before } }),
            None => json!({ "calls": [call] }),
        });
    }
    turns.push(json!({ "text": "done", "expect": { "result_contains": expected.unwrap() } }));
    env.write("script.yaml", json!({ "turns": turns }).to_string());
}

const RUN: [&str; 8] = ["run", "-p", "go", "--model", "script:script.yaml", "--tools", TOOLS, "--workdir"];

fn run(env: &TestEnv, words: &[&str]) -> Finished {
    env.run(RUN.iter().chain(&["d"]).chain(words))
}

/// A tool and code that change each other's files.
fn work(env: &TestEnv) {
    script(
        env,
        &[
            (write("notes", "by a tool"), ""),
            (sh("cat notes && printf ' and by code' >> notes && rm old"), "by a tool"),
            (json!({ "tool": "read_file", "args": { "path": "notes" } }), "by a tool and by code"),
        ],
    );
}

/// The content of the new file, and whether the old one exists.
fn there(env: &TestEnv) -> (Option<String>, bool) {
    (std::fs::read_to_string(env.path("d/notes")).ok(), env.path("d/old").exists())
}

fn before() -> (Option<String>, bool) {
    (None, true)
}

fn after() -> (Option<String>, bool) {
    (Some("by a tool and by code".to_owned()), false)
}

/// The ID in a command's output.
fn id(text: &str) -> String {
    let (_, rest) = text.split_once("toolpost apply ").unwrap_or_else(|| panic!("no id: {text}"));
    rest.chars().take_while(char::is_ascii_hexdigit).collect()
}

/// The directories of remaining layers and copies.
fn layers(env: &TestEnv) -> Vec<std::path::PathBuf> {
    let layers = env.path("../home/.local/state/toolpost/layers");
    let entries = std::fs::read_dir(layers).into_iter().flatten().flatten().map(|entry| entry.path());
    // The key stays.
    entries.filter(|path| path.is_dir()).collect()
}

#[test]
pub(crate) fn review() {
    let Some(env) = prepared() else { return };
    work(&env);
    let held = run(&env, &["--review"]).ok();
    assert_eq!(there(&env), before(), "{held}");
    for text in ["+ notes", "+by a tool and by code", "- old", "changes are held"] {
        assert!(held.err.contains(text), "{text}: {held}");
    }
    let id = id(&held.err);
    assert!(env.run(["apply"]).ok().out.contains(&id));
    env.run(["apply", &id]).ok();
    assert_eq!(there(&env), after());
    env.run(["undo", &id]).ok();
    assert_eq!(there(&env), before());
    // A program finds it in the record.
    let record = run(&env, &["--review", "--json"]).ok().json();
    let notices = record["notices"].to_string();
    assert_eq!(there(&env), before());
    let id = self::id(&notices);
    env.run(["discard", &id]).ok();
    assert_eq!(layers(&env), [] as [std::path::PathBuf; 0]);
    // Without a change there is no review.
    script(&env, &[(sh("cat old"), "old")]);
    let same = run(&env, &["--review"]).ok();
    assert!(!same.err.contains("held") && layers(&env).is_empty(), "{same}");
    // Without the option every change is applied at once.
    work(&env);
    run(&env, &[]).ok();
    assert_eq!(there(&env), after());
}

#[test]
pub(crate) fn discard() {
    let Some(env) = prepared() else { return };
    work(&env);
    let finished = run(&env, &["--discard"]).ok();
    assert_eq!(there(&env), before(), "{finished}");
    assert!(layers(&env).is_empty() && env.run(["apply"]).ok().out.is_empty());
}

#[test]
fn the_user_at_the_terminal_decides() {
    for (answer, expected, is_held) in
        [("yes\n", after(), false), ("no\n", before(), false), ("\n", before(), true)]
    {
        let Some(env) = prepared() else { return };
        work(&env);
        let (screen, running) = env.start_on_terminal("", RUN.iter().chain(&["d", "--review"]));
        screen.wait_for("yes / no / later?", 1);
        assert!(screen.text().contains("done") && screen.text().contains("+ notes"), "{}", screen.text());
        assert_eq!(there(&env), before());
        screen.press(answer);
        running.finish().ok();
        assert_eq!(there(&env), expected, "{answer}");
        assert_eq!(env.run(["apply"]).ok().out.contains("(held)"), is_held, "{answer}");
    }
}

#[test]
fn a_question_mark_explains_the_answers() {
    let Some(env) = prepared() else { return };
    work(&env);
    let (screen, running) = env.start_on_terminal("", RUN.iter().chain(&["d", "--review"]));
    screen.wait_for("yes / no / later?", 1);
    screen.press("?\n");
    screen.wait_for("`yes` applies the changes", 1);
    screen.wait_for("yes / no / later?", 2);
    assert_eq!(there(&env), before());
    screen.press("yes\n");
    running.finish().ok();
    assert_eq!(there(&env), after());
    // Answers that stay unknown hold the changes.
    let Some(env) = prepared() else { return };
    work(&env);
    let (screen, running) = env.start_on_terminal("", RUN.iter().chain(&["d", "--review"]));
    for number in 1..=4 {
        screen.wait_for("yes / no / later?", number);
        screen.press("what\n");
    }
    running.finish().ok();
    assert_eq!(there(&env), before());
    assert!(env.run(["apply"]).ok().out.contains("(held)"));
}

/// Every kind of change of a review.
const KINDS: &str = "rm -r dir; ln -s /etc dir; chmod +x run.sh; rm old; rm -r tree; ln -sfn other link; \
    echo all: > Makefile; echo hi > CLAUDE.md; mkdir new; echo x > new/.envrc; echo y > new/y; \
    rm kept/x; rm -r kept; mkfifo pipe; ln -s a/b named";

/// The review of [`KINDS`].
const REVIEWED: &str = "apply writes 11 changes:
+ CLAUDE.md  (agents obey it)
  @@ -0,0 +1 @@
  +hi
+ Makefile  (build tools execute it)
  @@ -0,0 +1 @@
  +all:
~ dir  (a link to /etc; instead of a directory with 2 entries; leads outside the directory)
- kept/x
~ link  (a link to other; before: a link to a)
+ named  (a link to a/b)
+ new  (a directory)
+ new/y
  @@ -0,0 +1 @@
  +y
- old
~ run.sh  (mode 0644 to 0755; executable)
- tree  (a directory with 1 entry)
held: kept/.envrc (protected: direnv executes it when a shell enters the directory)
held: new/.envrc (protected: direnv executes it when a shell enters the directory)
denied: pipe (it is a socket, a FIFO or a device)
hint: Allow a path with `--allow-protected PATH`.
";

fn prepared_kinds() -> Option<TestEnv> {
    let env = prepared()?;
    for name in ["d/dir/x", "d/dir/y", "d/run.sh", "d/tree/x", "d/kept/x", "d/kept/.envrc"] {
        env.write(name, "x\n");
    }
    std::os::unix::fs::symlink("a", env.path("d/link")).unwrap();
    Some(env)
}

#[test]
fn text_and_json_of_a_review_say_what_apply_does() {
    let exec = |env: &TestEnv, option: &[&str]| {
        let words = [&["exec", "--workdir", "d", "--review"][..], option, &["--", "sh", "-c", KINDS]];
        env.run(words.concat()).ok()
    };
    let Some(env) = prepared_kinds() else { return };
    let held = exec(&env, &[]);
    let (_, text) = held.err.split_once("apply writes").unwrap_or_else(|| panic!("{held}"));
    assert!(format!("apply writes{text}").starts_with(REVIEWED), "{held}");
    // The same as JSON, before and after.
    let Some(env) = prepared_kinds() else { return };
    let held = exec(&env, &["--json"]).json();
    let review = &held["applied"]["review"];
    let id = held["applied"]["id"].as_str().unwrap();
    let applied = env.run(["apply", id, "--json"]).ok();
    let applied = applied.json();
    assert_eq!(applied["review"], *review);
    let changes = review["changes"].as_array().unwrap();
    let lines: Vec<String> = changes
        .iter()
        .map(|change| {
            let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
            let entry = |entry: &Value| {
                let facts = [&entry["kind"], &entry["mode"], &entry["target"]].map(text);
                if entry.is_null() { "-".to_owned() } else { facts.join(",") }
            };
            let marks: Vec<String> = change["marks"].as_array().unwrap().iter().map(text).collect();
            let names = [&change["decision"], &change["kind"], &change["path"]].map(text).join(" ");
            let reason = [text(&change["reason"]["kind"]), text(&change["protection"])].join(" ");
            format!(
                "{names}: {} {} [{}] {reason}",
                entry(&change["before"]),
                entry(&change["after"]),
                marks.join(" ")
            )
        })
        .collect();
    assert_eq!(
        lines,
        [
            "applied created CLAUDE.md: - file,0644,- [instructions] - -",
            "applied created Makefile: - file,0644,- [build] - -",
            "applied replaced dir: directory,0755,- link,-,/etc [leads_outside] - -",
            "applied deleted kept/x: file,0644,- - [] - -",
            "applied changed link: link,-,a link,-,other [] - -",
            "applied created named: - link,-,a/b [] - -",
            "applied created new: - directory,0755,- [] - -",
            "applied created new/y: - file,0644,- [] - -",
            "applied deleted old: file,0644,- - [] - -",
            "applied changed run.sh: file,0644,- file,0755,- [executable] - -",
            "applied deleted tree: directory,0755,- - [] - -",
            "held deleted kept/.envrc: file,0644,- - [] protected start_file",
            "held created new/.envrc: - file,0644,- [] protected start_file",
            "denied created pipe: - special,0644,- [] special -",
        ]
    );
    assert_eq!(std::fs::read_link(env.path("d/dir")).unwrap().to_str(), Some("/etc"));
    let paths = ["old", "tree", "kept/x", "kept/.envrc", "new/y", "new/.envrc", "pipe"];
    let exists = paths.map(|path| env.path(&format!("d/{path}")).exists());
    assert_eq!(exists, [false, false, false, true, true, false, false]);
    // Marks are in the text of an apply, too.
    let Some(env) = prepared_kinds() else { return };
    let applied =
        env.run(["exec", "--workdir", "d", "--allow-protected", "new", "--", "sh", "-c", KINDS]).ok();
    for line in [
        "marked: CLAUDE.md (agents obey it)",
        "marked: Makefile (build tools execute it)",
        "marked: dir (leads outside the directory)",
        "marked: run.sh (executable)",
        "marked: new/.envrc (protected, and allowed: shells and interpreters execute it when they start)",
        "not applied: kept/.envrc (protected",
    ] {
        assert!(applied.err.contains(line), "{line}: {applied}");
    }
}

#[test]
fn a_hint_names_the_cause() {
    const ALLOW: &str = "--allow-protected";
    let Some(env) = prepared() else { return };
    // A conflict and a mass deletion have nothing to do with protection.
    let held = env.run(["exec", "--workdir", "d", "--review", "--", "sh", "-c", "echo x > old"]).ok();
    assert!(!held.err.contains(ALLOW), "{held}");
    let changed = std::fs::File::open(env.write("d/old", "of the host")).unwrap();
    changed.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(1)).unwrap();
    let applied = env.run(["apply", &id(&held.err)]).exit(5);
    assert!(applied.err.contains("hint: The directory changed during the run"), "{applied}");
    assert!(!applied.err.contains(ALLOW), "{applied}");
    let denied = env.run(["exec", "--workdir", "d", "--", "sh", "-c", "echo x > .envrc"]).exit(5);
    assert!(denied.err.contains("hint: Allow a path with `--allow-protected PATH`."), "{denied}");
    // Root writes everywhere.
    if rustix::process::geteuid().is_root() {
        println!("SKIP a_hint_names_the_cause: root needs no permission");
        return;
    }
    let closed = |mode| {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(env.path("d/closed"), permissions).unwrap();
    };
    env.write("d/closed/x", "x");
    let held = env.run(["exec", "--workdir", "d", "--review", "--", "sh", "-c", "echo y > closed/x"]).ok();
    closed(0o555);
    let applied = env.run(["apply", &id(&held.err)]).exit(5);
    closed(0o755);
    assert!(applied.err.contains("hint: Give your user write permission"), "{applied}");
    assert!(!applied.err.contains(ALLOW), "{applied}");
}

#[test]
fn a_conversation_is_reviewed_when_it_ends() {
    for (option, is_held) in [("--review", true), ("--discard", false)] {
        let Some(env) = prepared() else { return };
        work(&env);
        let words = ["chat", "--model", "script:script.yaml", "--tools", TOOLS, "--workdir", "d", option];
        let finished = env.run_with("go\n", words).ok();
        assert_eq!(there(&env), before(), "{finished}");
        assert_eq!(finished.err.contains("changes are held"), is_held, "{finished}");
        if is_held {
            env.run(["apply", &id(&finished.err)]).ok();
            assert_eq!(there(&env), after());
        }
    }
}

#[test]
fn conflicting_changes_of_the_host_stay() {
    let Some(env) = prepared() else { return };
    work(&env);
    let held = id(&run(&env, &["--review"]).ok().err);
    let changed = std::fs::File::open(env.write("d/old", "of the host")).unwrap();
    changed.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(1)).unwrap();
    let applied = env.run(["apply", &held]).exit(5);
    let way = format!(
        "held: 1 change; `toolpost apply {held}` retries after you move your version, `toolpost discard {held}` drops it"
    );
    for part in ["not applied: old (conflict", "applied 1 change; ", " reverts it\n", &way] {
        assert!(applied.err.contains(part), "{part}: {applied}");
    }
    assert_eq!(env.read("d/old"), "of the host");
    assert_eq!(env.read("d/notes"), "by a tool and by code");
    // The conflict stays held until it is applied or discarded.
    let listed = env.run(["apply"]).ok();
    assert!(listed.out.contains(&held) && listed.out.contains("(held)"), "{listed}");
    env.run(["apply", &held]).exit(5);
    std::fs::rename(env.path("d/old"), env.path("d/mine")).unwrap();
    assert_eq!(env.run(["apply", &held, "--json"]).ok().json()["held_count"], 0);
    assert_eq!(there(&env), after());
    env.run(["undo", &held]).ok();
    assert_eq!(there(&env), (None, false));
    assert_eq!(env.read("d/mine"), "of the host");
    assert!(env.run(["apply"]).ok().out.is_empty());
}

#[test]
fn discarding_a_conflict_leaves_the_undo_of_the_rest() {
    let Some(env) = prepared() else { return };
    work(&env);
    let held = id(&run(&env, &["--review"]).ok().err);
    std::fs::remove_file(env.path("d/old")).unwrap();
    env.write("d/notes", "of the host");
    env.run(["apply", &held]).exit(5);
    env.run(["discard", &held]).ok();
    assert!(env.run(["apply"]).ok().out.is_empty(), "nothing was applied");
    let Some(env) = prepared() else { return };
    let applied = env
        .run(["exec", "--workdir", "d", "--review", "--", "sh", "-c", "echo x > .envrc; echo x > made"])
        .ok();
    let held = id(&applied.err);
    let applied = env.run(["apply", &held]).ok();
    let way = format!("`toolpost apply {held} --allow-protected PATH` retries");
    assert!(applied.err.contains(&way), "{applied}");
    env.run(["discard", &held]).ok();
    assert!(env.run(["apply"]).ok().out.contains("(applied)"));
    env.run(["undo", &held]).ok();
    assert!(!env.path("d/made").exists());
}

#[test]
fn the_list_has_the_runs_of_this_directory_first() {
    let Some(env) = prepared() else { return };
    let exec = |directory: &str, option: &[&str]| {
        let words = [&["exec", "--workdir", directory][..], option, &["--", "sh", "-c", "echo x >> made"]];
        env.run(words.concat()).ok();
    };
    exec(".", &["--review"]);
    exec(".", &[]);
    exec("d", &["--review"]);
    let listed = env.run(["apply"]).ok();
    let lines: Vec<Vec<&str>> = listed.out.lines().map(|line| line.split("  ").collect()).collect();
    let states: Vec<(bool, &str)> = lines.iter().map(|line| (line[2].ends_with("/d"), line[3])).collect();
    assert_eq!(states, [(false, "(held)"), (false, "(applied)"), (true, "(held)")], "{listed}");
    let time = lines[0][1];
    assert!(time.len() == "2026-11-28T22:00:00Z".len() && time.ends_with('Z'), "{listed}");
    assert!(listed.err.contains("2 held, 1 applied"), "{listed}");
    // A layer of a newer program is counted.
    let record = layers(&env)[0].join("layer.json");
    let text = std::fs::read_to_string(&record).unwrap().replace("\"v\":2,", "\"v\":99,");
    std::fs::write(&record, text).unwrap();
    let listed = env.run(["apply"]).ok();
    assert_eq!(listed.out.lines().count(), 2, "{listed}");
    assert!(listed.err.contains("has format 99"), "{listed}");
}

#[test]
fn protected_paths_are_denied_in_the_copy_too() {
    let calls = |env: &TestEnv, is_admitted: bool| {
        let remark = if is_admitted { "exit_code" } else { "`.envrc` was not applied" };
        script(env, &[(sh("echo x > .envrc; echo x > made"), remark), (sh("ls -A"), "made")]);
    };
    let Some(env) = prepared() else { return };
    calls(&env, false);
    let held = run(&env, &["--review"]).ok();
    assert!(!held.err.contains("+ .envrc"), "{held}");
    let Some(env) = prepared() else { return };
    calls(&env, true);
    let held = run(&env, &["--review", "--allow-protected", ".envrc"]);
    assert!(held.err.contains("+ .envrc"), "{held}");
    env.run(["apply", &id(&held.err)]).ok();
    assert_eq!(env.read("d/.envrc"), "x\n");
    // The copy of a pinned file is protected too.
    let Some(env) = prepared() else { return };
    env.write("d/toolpost.toml", "");
    script(&env, &[(write("toolpost.toml", "tools = []"), "the operator protects this path")]);
    run(&env, &["--review"]);
    assert!(env.run(["apply"]).ok().out.is_empty());
}

#[test]
fn paths_are_those_of_the_original() {
    let Some(env) = prepared() else { return };
    let directory = env.path("d").canonicalize().unwrap().display().to_string();
    for (level, place) in [("strict", "/workspace"), ("standard", &*directory)] {
        script(
            &env,
            &[
                (write(format!("{directory}/by-path"), "1"), "by-path"),
                (sh(&format!("pwd; cat {place}/by-path")), place),
                (write("/elsewhere", "1"), &format!("outside the working directory `{directory}`")),
            ],
        );
        let held = run(&env, &["--review", "--level", level]).ok();
        assert!(held.err.contains("+ by-path") && !env.path("d/by-path").exists(), "{held}");
    }
}

#[test]
fn a_mass_deletion_is_held_once_and_as_a_whole() {
    let Some(env) = prepared() else { return };
    for number in 0..1_100 {
        env.write(&format!("d/many/{number}"), "");
    }
    script(&env, &[(sh("rm -r many"), ""), (sh("ls; echo gone > many"), "old")]);
    let held = run(&env, &["--review"]).ok();
    assert!(held.err.contains("+gone") || held.err.contains("~ many"), "{held}");
    assert_eq!(layers(&env).len(), 1);
    env.run(["apply", &id(&held.err)]).ok();
    assert_eq!(env.read("d/many"), "gone\n");
}

#[test]
fn a_killed_run_leaves_its_changes_held_unless_they_are_discarded() {
    for (option, is_held) in [("--review", true), ("--discard", false)] {
        let Some(env) = prepared() else { return };
        let env = env.leaving_files();
        script(&env, &[(write("notes", "by a tool"), ""), (sh("echo x > half; exec sleep 600"), "")]);
        let running = env.start(RUN.iter().chain(&["d", option]));
        let has_written = || layers(&env).iter().any(|layer| layer.join("upper/half").exists());
        eventually("both have written", has_written);
        running.signal(Signal::KILL);
        running.finish();
        assert_eq!(there(&env), before());
        if !is_held {
            eventually("it is cleared away", || {
                env.run(["apply"]).ok().out.is_empty() && layers(&env).is_empty()
            });
            continue;
        }
        eventually("the copy is free", || env.run(["apply"]).ok().out.contains("(held)"));
        script(&env, &[(sh("true"), "")]);
        let next = run(&env, &["--review"]).ok();
        assert!(next.err.contains("in this directory are held"), "{next}");
        let (_, held) = next.err.split_once("changes of run ").unwrap();
        env.run(["apply", held.split_whitespace().next().unwrap()]).ok();
        assert_eq!(there(&env), (Some("by a tool".to_owned()), true));
        assert!(!env.path("d/half").exists());
    }
}

#[test]
fn an_interrupted_run_is_held_without_a_prompt() {
    let Some(env) = prepared() else { return };
    script(&env, &[(write("notes", "by a tool"), ""), (sh("exec sleep 600"), "")]);
    let (_screen, running) = env.start_on_terminal("", RUN.iter().chain(&["d", "--review"]));
    eventually("it has written", || layers(&env).iter().any(|layer| layer.join("copy/notes").exists()));
    running.signal(Signal::INT);
    running.finish().exit(130);
    assert_eq!(there(&env), before());
    assert!(env.run(["apply"]).ok().out.contains("(held)"));
}

#[test]
fn an_interrupted_run_names_its_resumption_and_held_changes() {
    let Some(env) = prepared() else { return };
    let turns = [
        json!({ "calls": [sh("echo x > half; exec sleep 600")] }),
        json!({ "text": "done" }),
        json!({ "text": "done" }),
    ];
    env.write("script.yaml", json!({ "turns": turns }).to_string());
    let running = env.start(RUN.iter().chain(&["d"]));
    eventually("it has written", || layers(&env).iter().any(|layer| layer.join("upper/half").exists()));
    running.signal(Signal::TERM);
    let ended = running.finish().exit(130);
    let held = id(&ended.err);
    assert!(
        ended.err.contains(&format!("hint: The changes of the directory are held: `toolpost apply {held}`")),
        "{ended}"
    );
    let (_, rest) = ended.err.split_once("`toolpost run --resume ").unwrap_or_else(|| panic!("{ended}"));
    let run_id = rest.split(' ').next().unwrap();
    let resumed = run(&env, &["--continue"]).ok();
    let warning = format!("warning: changes of an earlier run are held: `toolpost apply {held}`");
    assert!(resumed.err.contains(&warning), "{resumed}");
    let resumed = run(&env, &["--resume", run_id]).ok();
    assert!(!resumed.err.contains("warning"), "{resumed}");
}

#[test]
fn undo_without_changes_explains_what_it_can_revert() {
    let env = TestEnv::new();
    let failed = env.run(["undo"]).exit(2);
    assert!(failed.err.contains("error: no changes to undo in `"), "{failed}");
    assert!(failed.err.contains("Only the last run in a directory can be undone."), "{failed}");
    assert!(env.run(["apply", "last"]).exit(2).err.contains("error: no run holds changes of `"));
}

#[test]
fn review_without_a_private_copy_is_rejected() {
    let Some(env) = prepared() else { return };
    work(&env);
    for (words, reason) in [
        (&["--review", "--live"][..], "--live"),
        (&["--discard", "--live"], "--live"),
        (&["--review", "--discard"], "--discard"),
        (&["--review", "--level", "minimal"], "level `minimal`"),
        (&["--discard", "--level", "minimal"], "level `minimal`"),
    ] {
        let finished = run(&env, words).exit(2);
        assert!(finished.err.contains(reason), "{finished}");
    }
    let without = ["run", "-p", "go", "--model", "script:script.yaml", "--review"];
    assert!(env.run(without).exit(2).err.contains("--workdir"));
    let exec = ["exec", "--workdir", "d", "--review", "--level", "minimal", "--", "touch", "d/x"];
    assert!(env.run(exec).exit(2).err.contains("no change can be held"));
    assert_eq!(there(&env), before());
}
