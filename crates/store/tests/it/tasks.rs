//! Tasks: kept, forgotten, found again, and one process's at a time.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

use serde_json::json;
use toolpost_core::{Code, TaskRecord, TaskStore as _, Timestamp};
use toolpost_store::{Store, TaskFile};

use crate::support::{again, block_on, part};

fn task(id: &str, step: u64) -> TaskRecord {
    TaskRecord { id: id.into(), until: Timestamp::from_micros(step), body: json!({ "step": step, "x": 0.1 }) }
}

#[test]
fn what_is_kept_is_found_again_until_it_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/tasks.db");
    block_on(async {
        let tasks = TaskFile::open(&path).unwrap();
        for kept in [task("b", 1), task("a", 2), task("b", 3), task("c", 4)] {
            tasks.put(kept).await.unwrap();
        }
        tasks.forget(&["c".into(), "never".into()]).await.unwrap();
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

#[test]
fn a_file_of_another_kind_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let documents = folder.path().join("documents.db");
    drop(Store::open(&documents).unwrap());
    assert_eq!(TaskFile::open(&documents).unwrap_err().code(), Code::InvalidPath);
    let tasks = folder.path().join("tasks.db");
    drop(TaskFile::open(&tasks).unwrap());
    assert_eq!(Store::open(&tasks).unwrap_err().code(), Code::InvalidPath);
    let text = folder.path().join("text.db");
    std::fs::write(&text, "not a database, and longer than its header would be ".repeat(40)).unwrap();
    assert_eq!(TaskFile::open(&text).unwrap_err().code(), Code::InvalidPath);
    assert_eq!(TaskFile::open(folder.path()).unwrap_err().code(), Code::InvalidPath);
}

/// Keeps tasks one after another and says each that was answered, until it is killed.
async fn keep_on(path: &Path) {
    let tasks = TaskFile::open(path).unwrap();
    for step in 0.. {
        tasks.put(task(&format!("{step:08}"), step)).await.unwrap();
        println!("kept {step}");
    }
}

#[test]
fn a_killed_process_loses_nothing_that_was_answered_and_gives_the_file_back() {
    const TEST: &str = "tasks::a_killed_process_loses_nothing_that_was_answered_and_gives_the_file_back";
    if let Some((_, path)) = part() {
        return block_on(keep_on(&path));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tasks.db");
    let mut child = again(&[], TEST, "keep", &path).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let number = |line: &String| line.strip_prefix("kept ").and_then(|step| step.parse::<u64>().ok());
    lines.by_ref().find(|line| number(line) == Some(100)).unwrap();
    let refused = TaskFile::open(&path).unwrap_err();
    assert_eq!(refused.code(), Code::Dependency);
    assert!(refused.message().contains("belong to a server that runs"), "{refused}");
    child.kill().unwrap();
    child.wait().unwrap();
    let last = lines.filter_map(|line| number(&line)).last().unwrap_or(100);
    let all = block_on(TaskFile::open(&path).unwrap().all()).unwrap();
    assert!(all.len() as u64 > last, "{} of {last}", all.len());
    for (step, kept) in all.iter().enumerate() {
        assert_eq!(*kept, task(&format!("{step:08}"), step as u64));
    }
}
