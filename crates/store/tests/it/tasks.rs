//! Tasks: stored, removed, and exclusive to one process.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

use serde_json::json;
use toolpost_core::{Code, TaskRecord, TaskStore as _, Timestamp};
use toolpost_store::{Store, TaskFile};

use crate::support::{block_on, child, role};

fn task(id: &str, step: u64) -> TaskRecord {
    TaskRecord { id: id.into(), until: Timestamp::from_micros(step), body: json!({ "step": step, "x": 0.1 }) }
}

#[test]
fn tasks_are_stored_until_they_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deep/tasks.db");
    block_on(async {
        let tasks = TaskFile::open(&path).unwrap();
        for task in [task("b", 1), task("a", 2), task("b", 3), task("c", 4)] {
            tasks.put(task).await.unwrap();
        }
        tasks.forget(&["c".into(), "unknown".into()]).await.unwrap();
        drop(tasks);
        let tasks = TaskFile::open(&path).unwrap();
        assert_eq!(tasks.all().await.unwrap(), [task("a", 2), task("b", 3)]);
        assert_eq!(tasks.load("b").await.unwrap(), Some(task("b", 3)));
        assert_eq!(tasks.load("c").await.unwrap(), None);
        assert_eq!(tasks.path(), path);
    });
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}

/// `tests/golden` has one file per format of [`TaskFile`]; every release must read all of them.
///
/// A new format has no file yet: this test makes it, and fails once.
#[test]
fn the_task_file_of_each_format_is_readable() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let newest = golden.join(format!("tasks-{}.db", TaskFile::FORMAT));
    let expected = [task("a", 2), task("b", 3)];
    if !newest.exists() {
        let tasks = TaskFile::open(&newest).unwrap();
        block_on(async {
            for task in expected.clone() {
                tasks.put(task).await.unwrap();
            }
        });
        panic!("made `{}`: commit it", newest.display());
    }
    let directory = tempfile::tempdir().unwrap();
    for format in 1..=TaskFile::FORMAT {
        let path = directory.path().join(format!("{format}.db"));
        std::fs::copy(golden.join(format!("tasks-{format}.db")), &path).unwrap();
        assert_eq!(block_on(TaskFile::open(&path).unwrap().all()).unwrap(), expected);
    }
    let newer = directory.path().join("newer.db");
    std::fs::copy(&newest, &newer).unwrap();
    rusqlite::Connection::open(&newer).unwrap().pragma_update(None, "user_version", 999).unwrap();
    let before = std::fs::read(&newer).unwrap();
    let error = TaskFile::open(&newer).unwrap_err();
    assert!(error.message().contains("has format 999, but this program supports formats up to 1"), "{error}");
    assert_eq!((error.code(), std::fs::read(&newer).unwrap()), (Code::Precondition, before));
}

#[test]
fn a_file_of_another_kind_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let documents = directory.path().join("documents.db");
    drop(Store::open(&documents).unwrap());
    assert_eq!(TaskFile::open(&documents).unwrap_err().code(), Code::InvalidPath);
    let tasks = directory.path().join("tasks.db");
    drop(TaskFile::open(&tasks).unwrap());
    assert_eq!(Store::open(&tasks).unwrap_err().code(), Code::InvalidPath);
    let text = directory.path().join("text.db");
    std::fs::write(&text, "not a database, and longer than its header would be ".repeat(40)).unwrap();
    assert_eq!(TaskFile::open(&text).unwrap_err().code(), Code::InvalidPath);
    assert_eq!(TaskFile::open(directory.path()).unwrap_err().code(), Code::InvalidPath);
}

/// Stores tasks until it is killed, and prints each acknowledged one.
async fn store_tasks(path: &Path) {
    let tasks = TaskFile::open(path).unwrap();
    for step in 0.. {
        tasks.put(task(&format!("{step:08}"), step)).await.unwrap();
        println!("stored {step}");
    }
}

#[test]
fn a_killed_process_loses_no_acknowledged_task_and_releases_the_file() {
    const TEST: &str = "tasks::a_killed_process_loses_no_acknowledged_task_and_releases_the_file";
    if let Some((_, path)) = role() {
        return block_on(store_tasks(&path));
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tasks.db");
    let mut child = child(&[], TEST, "", &path).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let number = |line: &String| line.strip_prefix("stored ").and_then(|step| step.parse::<u64>().ok());
    lines.by_ref().find(|line| number(line) == Some(100)).unwrap();
    let error = TaskFile::open(&path).unwrap_err();
    assert_eq!(error.code(), Code::Dependency);
    assert!(error.message().contains("in use by another server"), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();
    let last = lines.filter_map(|line| number(&line)).last().unwrap_or(100);
    let all = block_on(TaskFile::open(&path).unwrap().all()).unwrap();
    assert!(all.len() as u64 > last, "{} of {last}", all.len());
    for (step, found) in all.iter().enumerate() {
        assert_eq!(*found, task(&format!("{step:08}"), step as u64));
    }
}
