//! Files that are missing, foreign, damaged, newer, read-only or on a full disk.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::json;
use toolpost_core::{CallError, Code, Committed, DocStore};
use toolpost_store::Store;

use crate::support::{Lock, block_on, child, put, role, set};

fn filled(path: &Path) {
    let store = Store::open(path).unwrap();
    for n in 0..50 {
        block_on(set(&store, &format!("d/{n}"), json!({"n": n, "padding": "x".repeat(500)})));
    }
}

/// The error of opening a file, which must not change.
fn rejected(path: &Path, code: Code, text: &str) -> CallError {
    let before = std::fs::read(path).unwrap_or_default();
    let error = Store::open(path).map(drop).unwrap_err();
    assert_eq!(error.code(), code, "{error}");
    assert!(error.message().contains(text), "`{text}` is not in: {error}");
    assert!(error.message().contains(&path.display().to_string()), "no path in: {error}");
    assert!(error.suggestion().is_some_and(|next| next.len() > 10), "no suggestion: {error}");
    assert_eq!(std::fs::read(path).unwrap_or_default(), before, "the file was changed");
    error
}

#[test]
fn a_new_store_is_private_and_creates_its_directories() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("one/two/state.db");
    filled(&path);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        let store = Store::open(&path).unwrap();
        block_on(set(&store, "a", json!(1)));
        for extra in ["one/two/state.db-wal", "one/two/state.db-shm"] {
            assert_eq!(mode(&directory.path().join(extra)), 0o600, "{extra}");
        }
    }
    // A closed store is one file.
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn a_path_is_never_a_uri() {
    let directory = tempfile::tempdir().unwrap();
    for name in [":memory:", "file:x?mode=memory", "a b%20#?.db", "é"] {
        let path = directory.path().join(name);
        filled(&path);
        assert_eq!(block_on(Store::open(&path).unwrap().list("", None, 100)).unwrap().len(), 50, "{name}");
        assert!(std::fs::metadata(&path).unwrap().len() > 10_000, "{name}");
    }
}

#[test]
fn a_foreign_file_is_rejected_and_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    rejected(&file("text", &b"Not a database. ".repeat(100)), Code::InvalidPath, "is not a database");
    rejected(&file("short", b"SQLite"), Code::InvalidPath, "is not a database");
    rejected(directory.path(), Code::InvalidPath, "cannot be opened");
    rejected(&file("text", b"x").join("below"), Code::InvalidPath, "cannot be opened");

    let foreign = directory.path().join("foreign.db");
    let connection = rusqlite::Connection::open(&foreign).unwrap();
    connection.execute_batch("CREATE TABLE theirs (a); INSERT INTO theirs VALUES (1);").unwrap();
    drop(connection);
    rejected(&foreign, Code::InvalidPath, "another program");
}

#[test]
fn a_newer_format_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    filled(&path);
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 999).unwrap();
    drop(connection);
    let error =
        rejected(&path, Code::Precondition, "has format 999, but this program supports formats up to 1");
    assert_eq!(error.suggestion(), Some("Use the newer program, or another file."));
    assert_eq!((&error.context()["found"], &error.context()["known"]), (&json!(999), &json!(1)));
}

#[test]
fn a_damaged_file_is_an_error_and_stays_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    filled(&path);
    let whole = std::fs::read(&path).unwrap();
    // Truncated after the header.
    for length in [whole.len() / 2, whole.len() - 4096, 4096, 1000, 512] {
        std::fs::write(&path, &whole[..length]).unwrap();
        let error = Store::open(&path).map(drop).unwrap_err();
        let known = matches!(error.code(), Code::Dependency | Code::InvalidPath);
        assert!(known && error.suggestion().is_some(), "{length}: {error}");
        assert_eq!(std::fs::read(&path).unwrap(), whole[..length], "{length}");
    }
    // Overwritten in the middle: intact documents are readable, damaged ones fail.
    let mut holed = whole.clone();
    let (start, end) = (whole.len() / 2 / 4096 * 4096, whole.len() - 4096);
    holed[start..end].fill(0xA5);
    std::fs::write(&path, &holed).unwrap();
    let store = Store::open(&path).unwrap();
    let mut damaged = 0;
    for n in 0..50 {
        match block_on(store.load(&format!("d/{n}"))) {
            Ok(document) => assert_eq!(document.value["n"], n),
            Err(error) => {
                assert!(error.code() == Code::Dependency && error.message().contains("damaged"), "{error}");
                damaged += 1;
            }
        }
    }
    assert!((1..50).contains(&damaged), "{damaged}");
}

/// A modified change is an error that names the document and the version.
#[test]
fn an_inconsistent_history_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    for (index, (tamper, words)) in [
        ("UPDATE changes SET previous = seq WHERE version = 3", "version 2 of `a`"),
        ("UPDATE changes SET patch = '[' WHERE version = 2", "version 2 of `a`"),
        (
            "UPDATE changes SET patch = '[{\"op\":\"remove\",\"path\":\"/q\"}]' WHERE version = 3",
            "version 3 of `a`",
        ),
        ("DELETE FROM changes WHERE version = 1", "version 1 of `a`"),
        ("UPDATE documents SET head = 99", "version 3 of `a`"),
        ("UPDATE documents SET version = -1", "of `a`"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = directory.path().join(index.to_string());
        let store = Store::open(&path).unwrap();
        for n in 0..3 {
            block_on(set(&store, "a", json!({"n": n, "padding": "x".repeat(500)})));
        }
        rusqlite::Connection::open(&path).unwrap().execute_batch(tamper).unwrap();
        let error = block_on(store.load("a")).unwrap_err();
        assert!(error.code() == Code::Dependency && error.message().contains(words), "{tamper}: {error}");
    }
}

#[tokio::test]
async fn a_damaged_document_fails_only_the_commit_that_needs_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("state.db")).unwrap();
    for id in ["damaged", "whole"] {
        set(&store, id, json!(1)).await;
    }
    let (damaged, whole) = (store.load("damaged").await.unwrap(), store.load("whole").await.unwrap());
    set(&store, "damaged", json!(2)).await;
    let connection = rusqlite::Connection::open(store.path()).unwrap();
    connection.execute_batch("UPDATE changes SET patch = 'x', value = 'x' WHERE version = 2").unwrap();
    // Both commits wait for the lock and share one transaction. The first is a conflict with a damaged version.
    let lock = Lock::new(&store);
    let release = async { drop(lock) };
    let (lost, done, ()) =
        tokio::join!(put(&store, &damaged, json!(3)), put(&store, &whole, json!(2)), release);
    assert_eq!(lost.unwrap_err().code(), Code::Dependency);
    assert_eq!(done.unwrap(), Committed::Done(vec![2]));
    assert_eq!(*store.load("whole").await.unwrap().value, json!(2));
}

/// `tests/golden` has one file per format; every release must read all of them. A new format needs a new file.
#[test]
fn the_file_of_each_format_is_readable() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/1.db");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    std::fs::copy(&golden, &path).unwrap();
    let store = Store::open(&path).unwrap();
    block_on(async {
        assert_eq!(
            store.list("", None, 10).await.unwrap(),
            [("counters/ada".to_owned(), 70), ("notes".to_owned(), 1)]
        );
        for version in [0, 1, 2, 63, 64, 65, 70] {
            assert_eq!(
                *store.at("counters/ada", version).await.unwrap().value,
                counter(version),
                "{version}"
            );
        }
        let first = &store.log("counters/ada", 0, 1).await.unwrap()[0];
        assert_eq!(first.at.to_string(), "2026-11-22T01:00:00.000000Z");
        assert_eq!(first.call.unwrap().to_string(), "01kanz6w00g5e2wzgxrv03mmyr");
        assert_eq!(first.event, Some(json!({"why": "first"})));
        assert_eq!(*store.load("notes").await.unwrap().value, json!(["é", 0.1, null]));
    });
    // A new file has the schema of the newest golden file.
    let schema = |path: &Path| -> Vec<String> {
        let connection = rusqlite::Connection::open(path).unwrap();
        let mut statement = connection.prepare("SELECT sql FROM sqlite_schema ORDER BY name").unwrap();
        statement
            .query_map([], |row| Ok(row.get::<_, Option<String>>(0)?.unwrap_or_default()))
            .unwrap()
            .map(Result::unwrap)
            .collect()
    };
    let fresh = directory.path().join("fresh.db");
    drop(Store::open(&fresh).unwrap());
    assert_eq!(schema(&fresh), schema(&path));
}

fn counter(version: u64) -> serde_json::Value {
    if version == 0 {
        return json!(null);
    }
    json!({"n": version, "filling": "so that a patch is smaller than the document, which it is not for a bare number"})
}

/// Runs a shell script with its own mounts, then one test of this program with a role.
fn with_mounts(script: &str, test: &str, role: &str, directory: &Path, file: &Path) {
    let script = format!("set -e; dir=\"$0\"; {script}; exec \"$@\"");
    let directory = directory.to_str().unwrap();
    let wrapper = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &script, directory];
    let probe = child(&wrapper[..4], "--list", "", file).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        println!("SKIP {test}: no user namespace with mounts on this host");
        return;
    }
    let output = child(&wrapper, test, role, file).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("1 passed"), "{stdout}");
}

#[test]
fn a_full_disk_is_an_error_and_loses_nothing() {
    if let Some((name, path)) = role() {
        assert_eq!(name, "full");
        return block_on(fill(path));
    }
    let directory = tempfile::tempdir().unwrap();
    with_mounts(
        "mount -t tmpfs -o size=1m none \"$dir\"",
        "files::a_full_disk_is_an_error_and_loses_nothing",
        "full",
        directory.path(),
        &directory.path().join("state.db"),
    );
}

async fn fill(path: PathBuf) {
    let store = Store::open(&path).unwrap();
    let mut stored = 0;
    let error = loop {
        let id = format!("d/{stored}");
        let document = store.load(&id).await.unwrap();
        match put(&store, &document, json!("x".repeat(20_000))).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 100, "the disk is not full");
    };
    assert_eq!(error.code(), Code::Limit, "{error:#?}");
    assert!(error.message().contains("disk is full"), "{error}");
    assert!(stored > 3, "{stored}");
    for round in 0..2 {
        let store = if round == 0 { store.clone() } else { Store::open(&path).unwrap() };
        let listed = store.list("", None, 1_000).await.unwrap();
        assert_eq!(listed.len(), stored);
        for (id, _) in listed {
            assert_eq!(store.load(&id).await.unwrap().value.as_str().unwrap().len(), 20_000);
        }
    }
}

/// Opens a file for reading, and writes nothing, not even a file beside it.
fn only_reads(path: &Path) {
    let names = || {
        let entries = std::fs::read_dir(path.parent().unwrap()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    let store = Store::options().read_only().open(path).unwrap();
    let document = block_on(store.load("d/7")).unwrap();
    assert_eq!(document.value["n"], 7);
    assert_eq!(block_on(store.list("d/", None, 100)).unwrap().len(), 50);
    let failed =
        [block_on(put(&store, &document, json!(1))).map(drop), block_on(store.forget("d/7")).map(drop)];
    for error in failed.map(Result::unwrap_err) {
        assert_eq!(error.code(), Code::Permission, "{error}");
    }
    drop(store);
    assert_eq!(names(), before);
    let missing = Store::options().read_only().open(path.with_file_name("none.db")).unwrap_err();
    assert_eq!(missing.code(), Code::InvalidPath, "{missing}");
}

#[test]
fn a_store_is_read_without_writing() {
    let directory = tempfile::tempdir().unwrap();
    // The name has what a URI would end at.
    let path = directory.path().join("a?b#c%20.db");
    filled(&path);
    only_reads(&path);
    // Another process writes.
    let writer = Store::open(&path).unwrap();
    block_on(set(&writer, "late", json!(1)));
    let reader = Store::options().read_only().open(&path).unwrap();
    assert_eq!(block_on(reader.load("late")).unwrap().value, json!(1).into());
}

#[test]
fn a_read_only_file_is_an_error() {
    if let Some((name, path)) = role() {
        assert_eq!(name, "read-only");
        rejected(&path, Code::Permission, "cannot be");
        rejected(&path.with_file_name("new.db"), Code::Permission, "cannot be created");
        only_reads(&path);
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    filled(&path);
    with_mounts(
        "mount --bind \"$dir\" \"$dir\"; mount -o remount,bind,ro \"$dir\"",
        "files::a_read_only_file_is_an_error",
        "read-only",
        directory.path(),
        &path,
    );
}
