//! What a thousand runs leave behind: nothing.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use toolpost_sandbox::{Program, Source, Workspace};

use crate::support::{Mode, run};

/// Everything of this process that a run could leave behind.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    mounts: String,
    descriptors: usize,
    groups: BTreeSet<PathBuf>,
    folders: BTreeSet<PathBuf>,
    children: Vec<String>,
    threads: usize,
}

fn holdings() -> Holdings {
    let mut groups = BTreeSet::new();
    collect_groups(Path::new("/sys/fs/cgroup"), 0, &mut groups);
    let own = format!("toolpost-{}-", std::process::id());
    let folders = std::fs::read_dir(std::env::temp_dir())
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&own)))
        .collect();
    let threads: Vec<PathBuf> =
        std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|entry| entry.path()).collect();
    Holdings {
        mounts: std::fs::read_to_string("/proc/self/mountinfo").unwrap(),
        descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
        groups,
        folders,
        children: threads
            .iter()
            .map(|thread| std::fs::read_to_string(thread.join("children")).unwrap_or_default())
            .filter(|children| !children.is_empty())
            .collect(),
        threads: threads.len(),
    }
}

/// The groups of this process, at any depth.
fn collect_groups(folder: &Path, depth: usize, found: &mut BTreeSet<PathBuf>) {
    let own = format!("toolpost-{}-", std::process::id());
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if !path.is_dir() || path.is_symlink() {
            continue;
        }
        if entry.file_name().to_string_lossy().starts_with(&own) {
            found.insert(path);
        } else if depth < 8 {
            collect_groups(&path, depth + 1, found);
        }
    }
}

fn thousand_runs() {
    let host_folder = crate::support::open_folder();
    std::fs::set_permissions(host_folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let modes = Mode::available();
    let programs = [
        Program::argv(["true"]),
        Program::argv(["sh", "-c", "sleep 60 & echo x > file; exit 3"]),
        Program::argv(["./no-such-program"]),
    ];
    let one = |number: usize| {
        let mode = modes[number % modes.len()];
        let mut sandbox = mode.sandbox();
        if number.is_multiple_of(5) {
            sandbox = sandbox.file("a/b.txt", Source::Bytes(b"x".to_vec()));
        }
        if number.is_multiple_of(7) && mode != Mode::Shared {
            sandbox = sandbox.workspace(Workspace::Host(host_folder.path().to_owned()));
            let _ = std::fs::remove_dir_all(host_folder.path().join("a"));
        }
        let program = &programs[number / modes.len() % programs.len()];
        if number.is_multiple_of(9) {
            // Started and dropped, at once or after a while.
            let started = sandbox.start(program);
            if number.is_multiple_of(2) {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            drop(started);
            return;
        }
        let outcome = run(&sandbox, program);
        assert_eq!(outcome.is_err(), *program == programs[2], "{outcome:?}");
        drop(outcome);
    };
    // What is made once and kept: the first process, the identity map, facts about the host.
    (0..42).for_each(one);
    let before = holdings();
    (0..1000).for_each(one);
    let after = holdings();
    assert_eq!(before, after);
    let left: Vec<_> =
        std::fs::read_dir(host_folder.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| name == "a" || name == "file"), "placeholders are left: {left:?}");
}

/// In a process of its own, so that no other test holds anything meanwhile.
#[test]
fn a_thousand_runs_leave_nothing_behind() {
    #[expect(clippy::disallowed_methods, reason = "the test program itself, alone")]
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "leaks::helper_thousand_runs", "--nocapture", "--test-threads", "1"])
        .env(crate::support::HELPER, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
fn helper_thousand_runs() {
    // For a_thousand_runs_leave_nothing_behind.
    if !crate::support::is_helper() {
        return;
    }
    thousand_runs();
}
