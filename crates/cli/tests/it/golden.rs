//! The files of earlier releases, and files of later ones.
//!
//! `tests/golden` has a directory per release, made by its `make.sh`.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use toolpost_core::{Commit, DocStore as _, Patch, ToolSpec, Write};
use toolpost_store::Store;

use crate::support::{Finished, TestEnv};

fn releases() -> Vec<PathBuf> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let entries = std::fs::read_dir(golden).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<_> = entries.filter(|path| path.is_dir()).collect();
    assert!(!found.is_empty());
    found
}

/// Copies a directory with private permissions.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    std::fs::set_permissions(to, Permissions::from_mode(0o700)).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            std::fs::copy(&from, &to).unwrap();
        }
    }
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn write(path: &Path, value: &Value) {
    std::fs::write(path, value.to_string()).unwrap();
}

/// A home with the state of a release, and its working directory, at this test's paths.
fn world(release: &Path) -> TestEnv {
    let env = TestEnv::new();
    let state = state(&env, "");
    copy(release, &env.path(""));
    copy(&release.join("state"), &state);
    let (old, new) = (env.read("root"), env.path("").canonicalize().unwrap());
    let pins = state.join("approved-tools.json");
    for definition in definitions(&mut read(&pins)) {
        let spec: ToolSpec = serde_json::from_value(definition["definition"].clone()).unwrap();
        assert_eq!(definition["sha256"], spec.digest(), "definitions have other digests than before");
    }
    for path in [&pins, &state.join("trust.json")] {
        let text = std::fs::read_to_string(path).unwrap();
        std::fs::write(path, text.replace(&old, new.to_str().unwrap())).unwrap();
    }
    // The path of its program is part of a definition.
    let mut stored = read(&pins);
    for definition in definitions(&mut stored) {
        let spec: ToolSpec = serde_json::from_value(definition["definition"].clone()).unwrap();
        definition["sha256"] = spec.digest().into();
    }
    write(&pins, &stored);
    let directory = env.path("d").canonicalize().unwrap();
    let stat = directory.metadata().unwrap();
    for layer in std::fs::read_dir(state.join("layers")).unwrap().map(|entry| entry.unwrap().path()) {
        // Git stores no empty directory.
        for name in ["lower", "merged", "upper", "work/work"] {
            std::fs::create_dir_all(layer.join(name)).unwrap();
        }
        let mut record = read(&layer.join("layer.json"));
        record["directory"] = json!(directory.to_str().unwrap().as_bytes());
        record["device"] = stat.dev().into();
        record["inode"] = stat.ino().into();
        write(&layer.join("layer.json"), &record);
        if layer.join("done.json").exists() {
            let mut done = read(&layer.join("done.json"));
            let stat = env.path("d/old.txt").metadata().unwrap();
            done[0]["now"] = json!([stat.ino(), stat.size(), stat.ctime(), stat.ctime_nsec()]);
            write(&layer.join("done.json"), &done);
        }
        let id = record["id"].as_str().unwrap();
        std::fs::rename(&layer, layer.with_file_name(format!("{:x}-{:x}-{id}", stat.dev(), stat.ino())))
            .unwrap();
    }
    env
}

fn state(env: &TestEnv, name: &str) -> PathBuf {
    env.path("../home/.local/state/toolpost").join(name)
}

/// The stored pins with a definition.
fn definitions(pins: &mut Value) -> Vec<&mut Value> {
    let upstreams = pins["upstreams"].as_object_mut().unwrap().values_mut();
    upstreams
        .flat_map(|tools| tools.as_object_mut().unwrap().values_mut())
        .filter(|pin| pin["definition"].is_object())
        .collect()
}

#[test]
fn runs_and_conversations_of_each_release_open() {
    for release in releases() {
        let env = world(&release);
        let runs = env.run(["runs", "ls", "--json"]).ok().json()["runs"].clone();
        let shown: Vec<_> =
            runs.as_array().unwrap().iter().map(|run| (&run["title"], &run["success"])).collect();
        let expected = [("flow done", true), ("third", false), ("second", true), ("first", true)];
        assert_eq!(json!(shown), json!(expected), "{}", release.display());
        let first = runs[3]["id"].as_str().unwrap();
        let run = env.run(["runs", "show", first, "--json"]).ok().json();
        assert_eq!(run["record"]["response"], "The answer is 42.");
        assert_eq!(run["record"]["tool_calls"][0]["arguments"], json!({ "expression": "6*7" }));
        env.run(["runs", "replay", first]).ok();
        let words = ["run", "-p", "first", "--model", "replay:recording.jsonl", "--tools", "calculate"];
        assert_eq!(env.run(words).ok().out, "The answer is 42.\n");
        let script = env.read("one.yaml") + "  - text: 'Once more: 42.'\n";
        env.write("more.yaml", script);
        let conversation = run["summary"]["conversation"].as_str().unwrap();
        let words = ["run", "-p", "more", "--model", "script:more.yaml", "--resume", conversation];
        assert_eq!(env.run(words).ok().out, "Once more: 42.\n");
        let calls = env.run(["state", "show", "--prefix", "calls/", "--json"]).ok().json();
        let call = calls["documents"][0]["id"].as_str().unwrap().trim_start_matches("calls/").to_owned();
        let call = env.run(["runs", "show", &call, "--json"]).ok().json();
        assert!(call.to_string().contains("1+1"), "{call}");
    }
}

#[test]
fn workflows_of_each_release_resume() {
    for release in releases() {
        let env = world(&release);
        let runs = env.run(["flow", "ls", "--json"]).ok().json()["runs"].clone();
        let done = env.run(["flow", "show", runs[1]["id"].as_str().unwrap(), "--json"]).ok().json();
        assert_eq!((&done["state"], &done["output"]), (&json!("succeeded"), &json!([1, 4])));
        let signal = env.run(["flow", "signal", "last", "ok", r#"{"approved":true}"#]).exit(2);
        assert!(signal.err.contains("the step `ok` is an approval"), "{signal}");
        env.run(["flow", "approve", "last"]).ok();
        let resumed = env.run(["flow", "resume", "last", "--json"]).ok().json();
        assert_eq!(resumed["output"]["value"], 50, "{resumed}");
    }
}

#[test]
fn trust_and_approved_tools_of_each_release_hold() {
    for release in releases() {
        let env = world(&release);
        let trusted = env.run(["trust"]).ok().out;
        assert_eq!(trusted.matches("(trusted)").count(), 4, "{trusted}");
        let answer = env.run(["call", "gateway.toml", "w__forecast", "--json"]).ok().json();
        assert_eq!(answer["result"]["text"], "sun");
    }
}

/// Records of format 1 have no proof: code could have written them. They are named with their files, and stay.
#[test]
fn held_changes_without_a_proof_are_named_and_unchanged() {
    let env = world(&releases()[0]);
    let listed = env.run(["apply"]).ok();
    let mut count = 0;
    for layer in std::fs::read_dir(state(&env, "layers")).unwrap().map(|entry| entry.unwrap().path()) {
        if !layer.is_dir() {
            continue;
        }
        count += 1;
        assert!(
            listed.err.contains(&layer.canonicalize().unwrap().join("upper").display().to_string()),
            "{listed}"
        );
        let record = layer.join("layer.json");
        let id = read(&record)["id"].as_str().unwrap().to_owned();
        for command in ["apply", "discard", "undo"] {
            rejected(&env, &record, &[command, &id], "its record has format 1, which has no proof");
        }
    }
    assert_eq!(count, 2);
    assert_eq!(env.read("d/old.txt"), "applied");
    assert!(!env.path("d/new.txt").exists());
}

/// The error of a command about a file, which must not change.
fn rejected(env: &TestEnv, path: &Path, words: &[&str], part: &str) -> Finished {
    let before = std::fs::read(path).unwrap();
    let failed = env.run(words);
    assert!(!failed.status.success() && failed.err.contains(part), "`{part}`: {failed}");
    assert_eq!(std::fs::read(path).unwrap(), before, "{failed}");
    failed
}

/// Sets the version of a JSON file or of the first line of JSON Lines, with fields that this program does not know.
fn raise(path: &Path) {
    let text = std::fs::read_to_string(path).unwrap();
    let first = serde_json::Deserializer::from_str(&text).into_iter::<Value>().next().unwrap();
    let mut value = first.unwrap();
    value["v"] = 99.into();
    value["later"] = json!({ "a": 1 });
    write(path, &value);
}

#[test]
fn a_newer_file_is_rejected_and_unchanged() {
    let release = &releases()[0];
    let gateway = ["call", "gateway.toml", "w__forecast"];
    let replay = ["run", "-p", "first", "--model", "replay:recording.jsonl"];
    for (name, words, known) in [
        ("state/trust.json", &["trust"][..], 2),
        ("state/approved-tools.json", &gateway, 1),
        ("recording.jsonl", &replay, 2),
    ] {
        let env = world(release);
        let path = name.strip_prefix("state/").map_or_else(|| env.path(name), |name| state(&env, name));
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        rejected(&env, &path, words, path.file_name().unwrap().to_str().unwrap());
        std::fs::write(&path, &whole).unwrap();
        raise(&path);
        let part = format!("has format 99, but this program supports formats up to {known}");
        let failed = rejected(&env, &path, words, &part);
        // The status of an upstream has no fix.
        let fix = failed.err.to_lowercase().contains("use the newer program");
        assert!(fix || failed.err.contains("warning: the upstream `w` is unavailable"), "{failed}");
        assert!(failed.err.contains(path.file_name().unwrap().to_str().unwrap()), "{failed}");
    }
}

#[test]
fn newer_held_changes_are_rejected_and_unchanged() {
    let env = world(&releases()[0]);
    for layer in std::fs::read_dir(state(&env, "layers")).unwrap().map(|entry| entry.unwrap().path()) {
        let record = layer.join("layer.json");
        if !record.exists() {
            continue;
        }
        raise(&record);
        let id = read(&record)["id"].as_str().unwrap().to_owned();
        for command in ["apply", "discard", "undo"] {
            let part = format!("changes of run `{id}`: it has format 99");
            let failed = rejected(&env, &record, &[command, &id], &part);
            assert!(failed.err.contains("use the newer program"), "{failed}");
        }
    }
}

#[test]
fn newer_documents_are_rejected_and_unchanged() {
    let env = world(&releases()[0]);
    let runs = env.run(["runs", "ls", "--json"]).ok().json()["runs"].clone();
    let id = |at: usize| runs[at]["id"].as_str().unwrap().to_owned();
    let (run, flow) = (id(3), id(0));
    let shown = env.run(["runs", "show", &run, "--json"]).ok().json();
    let conversation = shown["summary"]["conversation"].as_str().unwrap();
    let documents = [
        (format!("runs/{run}"), vec!["runs", "show", &run]),
        (format!("runs/{run}"), vec!["runs", "replay", &run]),
        (
            format!("conversations/{conversation}"),
            vec!["run", "-p", "x", "--model", "script:one.yaml", "--resume", conversation],
        ),
        (format!("flows/{flow}"), vec!["flow", "show", &flow]),
        (format!("flows/{flow}"), vec!["flow", "resume", &flow]),
    ];
    let stored = |id: &str| env.run(["state", "show", id, "--json"]).ok().json();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (id, words) in documents {
        runtime.block_on(async {
            let store = Store::open(state(&env, "store.db")).unwrap();
            let document = store.load(&id).await.unwrap();
            let mut value = Value::clone(&document.value);
            value["v"] = 99.into();
            value["later"] = document.version.into();
            let patch = Patch::diff(&document.value, &value).to_value();
            let write = Write { id: id.clone(), base: document.version, patch, value: Arc::new(value) };
            store.commit(Commit { writes: vec![write], ..Commit::default() }).await.unwrap();
        });
        let before = stored(&id);
        let failed = env.run(&words).exit(1);
        let newest = if id.starts_with("flows/") { 2 } else { 1 };
        let part = format!("has format 99, but this program supports formats up to {newest}");
        assert!(failed.err.contains(&part) && failed.err.contains("Use the newer program"), "{failed}");
        assert_eq!(stored(&id), before);
    }
}

#[test]
fn the_specification_lists_each_format() {
    let specification = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../SPECIFICATION.md");
    let specification = std::fs::read_to_string(specification).unwrap();
    let version = TestEnv::new().run(["--version", "--json"]).ok().json();
    for (name, number) in version["formats"].as_object().unwrap() {
        let row = format!("| `{name}` {number} |");
        assert!(specification.contains(&row), "SPECIFICATION.md, section Formats, lacks `{row}`");
    }
}
