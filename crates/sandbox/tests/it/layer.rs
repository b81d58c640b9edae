//! The private layer of a host directory, and what apply moves to the host.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use toolpost_sandbox::{
    ApplyMode, ApplyState, Cancel, CellLimits, DenialReason, HeldRun, Language, Layer, Level, Limits,
    Outcome, Program, Protection, Reached, Sandbox, SandboxEvent, Session, Verdict, Workspace,
};

use crate::layer_records::write_record;
use crate::support::{bash, skip_without_namespaces};

fn host() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// A sandbox with its layers in the test's own directory.
fn over(directory: &Path, layers: &Path) -> Sandbox {
    Sandbox::new().workspace(Workspace::Host(directory.to_owned())).layers(layers)
}

fn run(directory: &Path, script: &str) -> Outcome {
    let layers = host();
    bash(&over(directory, layers.path()), script)
}

fn write(path: PathBuf, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn git(directory: &Path, arguments: &[&str]) -> String {
    #[expect(clippy::disallowed_methods, reason = "the host's side of a repository")]
    let mut command = Command::new("git");
    command.current_dir(directory).args(arguments).env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin");
    command.env("HOME", directory).env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_TERMINAL_PROMPT", "0");
    command.env("GIT_AUTHOR_NAME", "a").env("GIT_AUTHOR_EMAIL", "a@a");
    command.env("GIT_COMMITTER_NAME", "a").env("GIT_COMMITTER_EMAIL", "a@a");
    let output = command.output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Whether no layer is left.
fn is_empty(layers: &Path) -> bool {
    fs::read_dir(layers).map_or(true, |mut entries| entries.all(|entry| entry.unwrap().file_name() == "key"))
}

fn denied(outcome: &Outcome) -> Vec<String> {
    let applied = outcome.applied.as_ref();
    applied.map_or(Vec::new(), |applied| {
        applied.denied.iter().map(|denied| denied.path.display().to_string()).collect()
    })
}

#[test]
fn applied_files_that_are_no_artifacts_need_no_note() {
    if skip_without_namespaces("applied_files_that_are_no_artifacts_need_no_note") {
        return;
    }
    let directory = host();
    let outcome = run(directory.path(), "echo 1 > file; ln -s file link; ln file hard");
    assert!(directory.path().join("link").is_symlink() && directory.path().join("hard").is_file());
    let is_lost = |note: &&String| note.contains("is not copied back");
    assert_eq!(outcome.report.notes.iter().find(is_lost), None);
    // A fresh workspace ends with the run, so these files are lost.
    let outcome = bash(&Sandbox::new(), "echo 1 > file; ln -s file link");
    assert!(outcome.report.notes.iter().any(|note| note.contains("`link` is not copied back")));
}

#[test]
fn changes_reach_the_host_at_the_end_and_not_before() {
    if skip_without_namespaces("changes_reach_the_host_at_the_end_and_not_before") {
        return;
    }
    let directory = host();
    let at = |name: &str| directory.path().join(name);
    write(at("kept"), "kept");
    write(at("changed"), "before");
    write(at("deleted"), "x");
    write(at("d/inner"), "x");
    write(at("script.sh"), "#!/bin/sh\n");
    fs::set_permissions(at("script.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    let kept = fs::metadata(at("kept")).unwrap();
    let outcome = run(
        directory.path(),
        "echo after > changed; rm deleted; rm -r d; mkdir -p new/deep; echo 1 > new/deep/file; ln -s file new/deep/link
         echo 'echo hi' >> script.sh; chmod 4755 new/deep/file 2> /dev/null || chmod 755 new/deep/file; touch -d '2001-02-03 04:05:06.123456789' new/deep/file",
    );
    assert_eq!(outcome.verdict, Verdict::Ok, "{}", outcome.stderr.text());
    let applied = outcome.applied.unwrap();
    assert_eq!((applied.state, applied.denied_count), (ApplyState::Applied, 0), "{applied:?}");
    assert_eq!(fs::read_to_string(at("changed")).unwrap(), "after\n");
    assert!(!at("deleted").exists() && !at("d").exists());
    assert_eq!(fs::read_to_string(at("new/deep/link")).unwrap(), "1\n");
    let file = fs::metadata(at("new/deep/file")).unwrap();
    assert_eq!(
        (file.mode() & 0o7777, file.mtime_nsec()),
        (0o755, 123_456_789),
        "set-user-id goes, the time stays"
    );
    assert_eq!(file.uid(), fs::metadata(directory.path()).unwrap().uid());
    assert_eq!(fs::metadata(at("script.sh")).unwrap().mode() & 0o777, 0o755);
    assert_eq!(fs::metadata(at("kept")).unwrap().ino(), kept.ino());
    assert!(outcome.report.has(Layer::PrivateLayer) && outcome.report.has(Layer::ProtectedPaths));
    let names = |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
    assert_eq!(names(&outcome.changes.changed), ["changed", "script.sh"]);
    assert_eq!(names(&outcome.changes.deleted), ["d", "deleted"]);
    assert_eq!(outcome.artifacts.len(), 3, "{:?}", outcome.artifacts);
    for artifact in &outcome.artifacts {
        assert_eq!(artifact.read().unwrap(), fs::read(at(&artifact.path)).unwrap(), "{}", artifact.path);
    }
}

#[test]
fn protected_paths_and_planted_repositories_do_not_reach_the_host() {
    if skip_without_namespaces("protected_paths_and_planted_repositories_do_not_reach_the_host") {
        return;
    }
    let plant = "git init -q --bare {D} 2>/dev/null || mkdir -p {D}/objects {D}/refs {D}/hooks; \
                 printf 'ref: refs/heads/main\\n' > {D}/HEAD; \
                 printf '[core]\\n repositoryformatversion = 0\\n bare = false\\n worktree = .\\n \
                 fsmonitor = touch ran; false\\n' > {D}/config";
    for (name, script, paths) in [
        (
            "names",
            "for f in .bashrc .envrc .octaverc .mcp.json .gitconfig .profile; do echo 'touch ran' > $f; done
                   mkdir -p .ssh .claude .vscode .cargo .husky sub/.vscode; echo k > .ssh/authorized_keys
                   echo '{}' > .claude/settings.json; echo '{}' > .vscode/tasks.json; echo x > .cargo/env
                   echo x > sub/.vscode/tasks.json; echo x > .BashRC.; ln -s notes .zshrc; ln -s evil .git",
            vec![
                ".bashrc",
                ".envrc",
                ".octaverc",
                ".mcp.json",
                ".gitconfig",
                ".profile",
                ".ssh",
                ".claude",
                ".vscode",
                ".cargo/env",
                "sub/.vscode",
                ".husky",
                ".BashRC.",
                ".zshrc",
                ".git",
            ],
        ),
        ("bare at the top", &plant.replace("{D}", "."), vec!["config", "HEAD"]),
        ("bare in a subdirectory", &plant.replace("{D}", "lib"), vec!["lib/config", "lib/HEAD"]),
        ("new repository", &plant.replace("{D}", "new/.git"), vec!["new/.git"]),
        ("git as a file", "mkdir sub real; echo 'gitdir: ../real' > sub/.git", vec!["sub/.git"]),
        (
            "65 decoys",
            "for i in $(seq 70); do mkdir -p r$i/.git; echo x > r$i/.git/config; done",
            vec!["r1/.git", "r65/.git", "r70/.git"],
        ),
    ] {
        let directory = host();
        let outcome = run(directory.path(), &format!("echo ok > notes\n{script}"));
        assert_eq!(outcome.verdict, Verdict::Ok, "{name}: {}", outcome.stderr.text());
        for path in paths {
            assert!(directory.path().join(path).symlink_metadata().is_err(), "{name}: {path}");
        }
        assert_eq!(
            fs::read_to_string(directory.path().join("notes")).unwrap(),
            "ok\n",
            "{name}: work continues"
        );
        for place in [".", "lib", "new", "sub"] {
            if directory.path().join(place).is_dir() {
                git(&directory.path().join(place), &["status"]);
                git(&directory.path().join(place), &["log"]);
            }
        }
        assert!(!directory.path().join("ran").exists(), "{name}");
        assert!(outcome.applied.unwrap().denied_count > 0, "{name}");
    }
}

#[test]
fn a_repository_is_not_planted_in_two_halves() {
    if skip_without_namespaces("a_repository_is_not_planted_in_two_halves") {
        return;
    }
    let directory = host();
    run(directory.path(), "mkdir -p d/objects; echo 'ref: refs/heads/x' > d/HEAD; echo '[core]' > d/config");
    let outcome = run(directory.path(), "mkdir -p d/refs/heads; echo ok > d/notes");
    assert!(directory.path().join("d/HEAD").exists() && directory.path().join("d/notes").exists());
    assert!(!directory.path().join("d/refs").exists(), "{:?}", outcome.applied);
    assert_eq!(denied(&outcome), ["d/refs"]);
}

#[test]
fn git_works_in_a_repository_that_existed() {
    if skip_without_namespaces("git_works_in_a_repository_that_existed") {
        return;
    }
    let directory = host();
    git(directory.path(), &["init", "-q", "-b", "main"]);
    write(directory.path().join("a"), "a\n");
    git(directory.path(), &["add", "."]);
    git(directory.path(), &["commit", "-q", "-m", "first"]);
    let outcome = run(
        directory.path(),
        "export GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x
         git checkout -q -b side && echo b > b && git add b && git commit -q -m second &&
         git checkout -q main && git merge -q side && git clone -q --no-hardlinks . copy
         git config core.fsmonitor 'touch ran'; echo 'touch ran' > .git/hooks/pre-commit
         chmod +x .git/hooks/pre-commit; mkdir .git/rebase-merge; echo 'exec touch ran' > .git/rebase-merge/git-rebase-todo
         echo '* filter=evil' > .gitattributes",
    );
    assert_eq!(outcome.verdict, Verdict::Ok, "{}", outcome.stderr.text());
    assert_eq!(
        git(directory.path(), &["log", "--format=%s"]).lines().collect::<Vec<_>>(),
        ["second", "first"]
    );
    let status = git(directory.path(), &["status", "--short"]);
    assert_eq!(status, "?? copy/\n", "{:?}", outcome.applied);
    git(directory.path(), &["rebase", "--continue"]);
    git(directory.path(), &["commit", "--allow-empty", "-m", "third"]);
    assert!(!directory.path().join("ran").exists());
    assert!(directory.path().join("copy/b").exists() && !directory.path().join("copy/.git").exists());
    let denied = denied(&outcome);
    for path in [".git/config", ".git/hooks/pre-commit", ".git/rebase-merge", ".gitattributes", "copy/.git"] {
        assert!(denied.iter().any(|denied| denied == path), "{path}: {denied:?}");
    }
}

#[test]
fn concurrent_host_changes_are_conflicts() {
    if skip_without_namespaces("concurrent_host_changes_are_conflicts") {
        return;
    }
    let (directory, layers) = (host(), host());
    for name in ["edited", "replaced", "removed", "deleted", "untouched"] {
        write(directory.path().join(name), "before");
    }
    let sandbox = over(directory.path(), layers.path());
    let started = directory.path().to_owned();
    let mut on_event = move |_: toolpost_sandbox::SandboxEvent<'_>| {
        fs::write(started.join("edited"), "by the host").unwrap();
        fs::write(started.join("other"), "by the host").unwrap();
        fs::rename(started.join("other"), started.join("replaced")).unwrap();
        fs::remove_file(started.join("removed")).unwrap();
        fs::write(started.join("deleted"), "by the host").unwrap();
        fs::write(started.join("made"), "by the host").unwrap();
    };
    let script =
        "cat edited replaced removed deleted > /dev/null; ls -l > /dev/null; echo x >> removed; echo go
                  sleep 0.3; for f in edited replaced untouched made; do echo code > $f; done; rm deleted";
    let outcome = sandbox.run(&Program::argv(["bash", "-c", script]), &Cancel::new(), &mut on_event).unwrap();
    assert_eq!(outcome.verdict, Verdict::Ok, "{}", outcome.stderr.text());
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap_or_default();
    for name in ["edited", "replaced", "deleted", "made"] {
        assert_eq!(read(name), "by the host", "{name}: {:?}", outcome.applied);
    }
    assert_eq!(read("removed"), "beforex\n", "nothing stands there that could be lost");
    assert_eq!(read("untouched"), "code\n");
    let applied = outcome.applied.as_ref().unwrap();
    assert!(applied.denied.iter().all(|denied| denied.reason == DenialReason::Conflict), "{applied:?}");
    assert_eq!(applied.denied_count, 4);
    let version = outcome.artifacts.iter().find(|artifact| artifact.path == "edited").unwrap();
    assert_eq!(version.read().unwrap(), b"code\n", "the code's version is an artifact");
    drop(outcome);
    // The code's versions stay for another apply. Without the host's versions there is no conflict.
    let held =
        || HeldRun::all(Some(layers.path())).into_iter().find(|run| run.directory() == directory.path());
    for name in ["edited", "replaced", "made"] {
        assert_eq!(held().unwrap().content(Path::new(name), 100).unwrap(), b"code\n", "{name}");
        fs::rename(directory.path().join(name), directory.path().join(format!("{name}.mine"))).unwrap();
    }
    let applied = held().unwrap().apply(&[]).unwrap();
    assert_eq!((applied.changed, applied.denied_count, applied.held_count), (3, 1, 1), "{applied:?}");
    for name in ["edited", "replaced", "made"] {
        assert_eq!(fs::read_to_string(directory.path().join(name)).unwrap(), "code\n", "{name}");
    }
    assert_eq!(fs::read_to_string(directory.path().join("deleted")).unwrap(), "by the host");
}

/// Conflicts among build products are not loss: an ordinary run drops them.
#[test]
fn conflicts_in_build_directories_are_not_held() {
    if skip_without_namespaces("conflicts_in_build_directories_are_not_held") {
        return;
    }
    let (directory, layers) = (host(), host());
    write(directory.path().join("target/file"), "before");
    let host = directory.path().join("target/file");
    let mut on_event = move |_: SandboxEvent<'_>| fs::write(&host, "by the host").unwrap();
    let program = Program::argv(["bash", "-c", "echo go; sleep 0.3; echo code > target/file"]);
    let outcome = over(directory.path(), layers.path()).run(&program, &Cancel::new(), &mut on_event).unwrap();
    assert_eq!(denied(&outcome), ["target/file"]);
    assert_eq!(outcome.applied.as_ref().unwrap().held_count, 0);
    drop(outcome);
    assert!(is_empty(layers.path()));
}

/// Apply loses no change: denied ones stay held, on one file system and, if `/tmp` is in memory, across two.
#[test]
fn denied_changes_stay_held_for_another_apply() {
    if skip_without_namespaces("denied_changes_stay_held_for_another_apply") {
        return;
    }
    let on_disk = PathBuf::from("/var/tmp");
    for parent in [&on_disk, &std::env::temp_dir()] {
        for end in ["apply", "undo", "discard"] {
            let directory = tempfile::tempdir_in(parent).unwrap();
            let layers = tempfile::tempdir_in(&on_disk).unwrap();
            let at = |name: &str| directory.path().join(name);
            let read = |name: &str| fs::read_to_string(at(name)).unwrap_or_default();
            for name in ["edited", "deleted", "whole/a", "whole/b", "again/a", "again/b", "other"] {
                write(at(name), "before");
            }
            let sandbox = over(directory.path(), layers.path()).apply(ApplyMode::Hold);
            let script =
                "echo code > edited; rm deleted; rm -r whole again; mkdir again; echo code > again/new
                          echo code > other; mkdir d; echo code > d/file; echo code > .envrc; mkfifo pipe";
            let id = bash(&sandbox, script).applied.unwrap().id;
            let held = || HeldRun::find(&id, Some(layers.path()));
            for name in ["edited", "whole/b", "again/b"] {
                fs::write(at(name), "by the host").unwrap();
            }
            let applied = held().unwrap().apply(&[]).unwrap();
            let context = format!("{parent:?} {end} {applied:?}");
            assert_eq!((applied.state, applied.can_undo), (ApplyState::Applied, true), "{context}");
            assert_eq!((applied.denied_count, applied.held_count), (5, 4), "a pipe is not held: {context}");
            assert_eq!((read("other"), read("d/file")), ("code\n".into(), "code\n".into()), "{context}");
            assert_eq!(read("again/new"), "code\n", "{context}");
            assert!(
                !at("deleted").exists() && !at("whole/a").exists() && !at("again/a").exists(),
                "{context}"
            );
            for name in ["edited", "whole/b", "again/b"] {
                assert_eq!(read(name), "by the host", "{context}");
            }
            let run = held().unwrap();
            assert!(run.is_waiting() && run.can_undo(), "{context}");
            assert_eq!(run.content(Path::new("edited"), 100).unwrap(), b"code\n", "{context}");
            // A change of an applied entry is not a new conflict.
            fs::write(at("other"), "later").unwrap();
            let again = run.apply(&[]).unwrap();
            assert_eq!((again.changed, again.denied_count, again.held_count), (0, 4, 4), "{again:?}");
            fs::write(at("other"), "code\n").unwrap();
            match end {
                "apply" => {
                    fs::rename(at("edited"), at("mine")).unwrap();
                    for name in ["whole/b", "again/b"] {
                        fs::remove_file(at(name)).unwrap();
                    }
                    let applied = held().unwrap().apply(&[".envrc".into()]).unwrap();
                    assert_eq!((applied.denied_count, applied.held_count), (0, 0), "{context} {applied:?}");
                    assert_eq!(
                        (read("edited"), read(".envrc")),
                        ("code\n".into(), "code\n".into()),
                        "{context}"
                    );
                    assert_eq!((read("again/new"), read("mine")), ("code\n".into(), "by the host".into()));
                    assert!(!at("whole").exists() && !held().unwrap().is_waiting(), "{context}");
                    let undone = held().unwrap().undo().unwrap();
                    // The last write was the host's.
                    assert_eq!(undone.denied.len(), 1, "{context} {undone:?}");
                    for (name, content) in
                        [("deleted", "before"), ("whole/a", "before"), ("again/a", "before")]
                    {
                        assert_eq!(read(name), content, "{context} {undone:?}");
                    }
                    assert!(!at("edited").exists() && !at("d").exists() && !at("again/new").exists());
                }
                "undo" => {
                    let undone = held().unwrap().undo().unwrap();
                    assert_eq!((undone.denied_count, undone.held_count), (1, 4), "{context} {undone:?}");
                    assert_eq!((read("deleted"), read("whole/a")), ("before".into(), "before".into()));
                    assert!(!at("d").exists(), "{context}");
                    assert!(held().unwrap().is_waiting(), "{context}");
                }
                _ => {
                    held().unwrap().discard();
                    assert!(!held().unwrap().is_waiting(), "{context}");
                    assert_eq!(read("edited"), "by the host");
                    held().unwrap().undo().unwrap();
                    assert_eq!((read("edited"), read("deleted")), ("by the host".into(), "before".into()));
                }
            }
        }
    }
}

#[test]
fn held_runs_are_applied_discarded_and_undone_later() {
    if skip_without_namespaces("held_runs_are_applied_discarded_and_undone_later") {
        return;
    }
    let (directory, layers) = (host(), host());
    write(directory.path().join("file"), "before");
    write(directory.path().join("gone"), "gone");
    let script = "echo after > file; echo new > new; rm gone; mkdir d; echo x > d/x; echo x > .envrc";
    let held = |mode: ApplyMode| {
        let outcome = bash(&over(directory.path(), layers.path()).apply(mode), script);
        outcome.applied
    };
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap_or_default();
    assert_eq!(held(ApplyMode::Discard).unwrap().state, ApplyState::Discarded);
    let id = held(ApplyMode::Hold).unwrap().id;
    assert_eq!(read("file"), "before");
    let run = HeldRun::find(&id, Some(layers.path())).unwrap();
    assert!(run.is_waiting());
    assert_eq!(run.content(Path::new("file"), 100).unwrap(), b"after\n");
    assert_eq!(run.changes().new.len(), 3);
    let applied = run.apply(&[]).unwrap();
    assert_eq!((applied.state, applied.denied_count), (ApplyState::Applied, 1), "{applied:?}");
    assert_eq!((read("file"), read("new"), read("d/x")), ("after\n".into(), "new\n".into(), "x\n".into()));
    assert!(!directory.path().join("gone").exists() && !directory.path().join(".envrc").exists());
    HeldRun::find(&id, Some(layers.path())).unwrap().discard();
    let run = HeldRun::find(&id, Some(layers.path())).unwrap();
    assert!(!run.is_waiting());
    let undone = run.undo().unwrap();
    assert_eq!(undone.denied_count, 0, "{undone:?}");
    assert_eq!((read("file"), read("gone")), ("before".into(), "gone".into()));
    let names = fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(names, 2);
    let id = held(ApplyMode::Hold).unwrap().id;
    HeldRun::find(&id, Some(layers.path())).unwrap().discard();
    assert!(HeldRun::find(&id, Some(layers.path())).is_err());
    assert_eq!(
        HeldRun::all(Some(layers.path())).iter().filter(|run| run.directory() == directory.path()).count(),
        0
    );
}

/// Records in directories that others can write, or behind a link, are ignored: records are trusted.
#[test]
fn records_writable_by_others_are_ignored() {
    if skip_without_namespaces("records_writable_by_others_are_ignored") {
        return;
    }
    let (directory, layers) = (host(), host());
    let sandbox = over(directory.path(), layers.path()).apply(ApplyMode::Hold);
    let id = bash(&sandbox, "echo x > file").applied.unwrap().id;
    let is_found = |layers: &Path| HeldRun::find(&id, Some(layers)).is_ok();
    assert!(is_found(layers.path()));
    fs::set_permissions(layers.path(), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(!is_found(layers.path()));
    fs::set_permissions(layers.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let link = directory.path().join("link");
    symlink(layers.path(), &link).unwrap();
    assert!(!is_found(&link) && is_found(layers.path()));
}

/// Undo restores modes and times too, on one file system and across two, and never removes entries of others.
#[test]
fn undo_restores_modes_and_keeps_the_rest() {
    if skip_without_namespaces("undo_restores_modes_and_keeps_the_rest") {
        return;
    }
    let shared = Path::new("/dev/shm");
    let parents = [std::env::temp_dir(), shared.to_owned()];
    for parent in parents.iter().filter(|parent| parent.is_dir()) {
        let (directory, outside) = (host(), host());
        let layers = tempfile::Builder::new().tempdir_in(parent).unwrap();
        let path = |name: &str| directory.path().join(name);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        write(path("private/secret"), "secret");
        set(&path("private"), 0o700);
        write(path("touched"), "same");
        set(&path("touched"), 0o600);
        write(path("edited"), "before");
        set(&path("edited"), 0o640);
        let linked = outside.path().join("linked");
        fs::write(&linked, "linked").unwrap();
        set(&linked, 0o600);
        let has_link = fs::hard_link(&linked, path("linked")).is_ok();
        let times = |name: &str| fs::metadata(path(name)).unwrap().modified().unwrap();
        let (touched, edited) = (times("touched"), times("edited"));
        let script = "rm -r private; chmod 666 touched; echo after > edited; chmod 666 linked || true";
        let applied = bash(&over(directory.path(), layers.path()), script).applied.unwrap();
        assert_eq!((applied.denied_count, mode(&path("touched"))), (0, 0o666), "{parent:?} {applied:?}");
        assert!(!path("private").exists());
        assert!(!has_link || mode(&linked) == 0o600, "a file outside has its other name in the directory");

        let undone = HeldRun::find(&applied.id, Some(layers.path())).unwrap().undo().unwrap();
        assert_eq!(undone.denied_count, 0, "{parent:?} {undone:?}");
        assert_eq!((mode(&path("private")), mode(&path("touched"))), (0o700, 0o600), "{parent:?}");
        assert_eq!((times("touched"), mode(&path("edited"))), (touched, 0o640), "{parent:?}");
        assert_eq!((times("edited"), fs::read_to_string(path("edited")).unwrap()), (edited, "before".into()));
        assert_eq!(fs::read_to_string(path("private/secret")).unwrap(), "secret");
        let names = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(names, 3 + usize::from(has_link), "nothing is left beside");

        // Later changes of the host are not undone, and their old versions stay.
        let applied = bash(&over(directory.path(), layers.path()), "echo after > edited").applied.unwrap();
        fs::write(path("edited"), "by the host").unwrap();
        let undone = HeldRun::find(&applied.id, Some(layers.path())).unwrap().undo().unwrap();
        assert_eq!(undone.denied_count, 1);
        assert_eq!(fs::read_to_string(path("edited")).unwrap(), "by the host");
        assert!(HeldRun::find(&applied.id, Some(layers.path())).is_ok(), "{parent:?}: the old version stays");
    }
}

/// If both sides changed only a file's mode, the host's stays.
#[test]
fn a_concurrent_mode_change_is_a_conflict() {
    if skip_without_namespaces("a_concurrent_mode_change_is_a_conflict") {
        return;
    }
    let (directory, layers) = (host(), host());
    write(directory.path().join("file"), "same");
    let file = directory.path().join("file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let mut on_event = |event: SandboxEvent<'_>| {
        if matches!(event, SandboxEvent::Stdout(_)) {
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        }
    };
    let program = Program::argv(["bash", "-c", "touch file; echo go; sleep 0.3"]);
    let sandbox = over(directory.path(), layers.path());
    let outcome = sandbox.run(&program, &Cancel::new(), &mut on_event).unwrap();
    assert_eq!(denied(&outcome), ["file"]);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn an_allowed_protected_path_is_applied() {
    if skip_without_namespaces("an_allowed_protected_path_is_applied") {
        return;
    }
    let (directory, layers) = (host(), host());
    let sandbox = over(directory.path(), layers.path()).allow_protected([".vscode".into()]);
    let outcome = bash(&sandbox, "mkdir .vscode; echo x > .vscode/tasks.json; echo x > .envrc");
    assert!(directory.path().join(".vscode/tasks.json").exists());
    assert_eq!(denied(&outcome), [".envrc"]);
    let denied = &outcome.applied.unwrap().denied[0];
    let DenialReason::Protected(rule) = denied.reason else { panic!("{denied:?}") };
    assert_eq!((rule.kind, rule.program), (Protection::StartFile, "direnv"));
    assert_eq!(denied.message, "protected: direnv executes it when a shell enters the directory");
}

#[test]
fn mass_deletion_and_cancelled_runs_are_held() {
    if skip_without_namespaces("mass_deletion_and_cancelled_runs_are_held") {
        return;
    }
    let directory = host();
    for number in 0..1100 {
        write(directory.path().join(format!("d/{}/f{number}", number % 7)), "x");
        write(directory.path().join(format!("node_modules/f{number}")), "x");
    }
    write(directory.path().join("e"), "x");
    for (script, state) in [
        ("rm -rf node_modules", ApplyState::Applied),
        ("rm -rf d", ApplyState::Held),
        ("rm -rf d; mkdir d", ApplyState::Held),
        ("rm -rf *", ApplyState::Held),
    ] {
        let layers = host();
        let outcome = bash(&over(directory.path(), layers.path()), script);
        let applied = outcome.applied.unwrap();
        assert_eq!(applied.state, state, "{script}: {applied:?}");
        assert!(directory.path().join("d/1/f1").exists());
    }
    let layers = host();
    let cancel = Cancel::new();
    let handle = cancel.clone();
    let outcome = over(directory.path(), layers.path())
        .run(&Program::argv(["bash", "-c", "echo x > e; echo go; sleep 60"]), &cancel, &mut move |_| {
            handle.cancel();
        })
        .unwrap();
    assert_eq!(outcome.verdict, Verdict::Cancelled);
    assert_eq!(outcome.applied.unwrap().state, ApplyState::Held);
    assert_eq!(fs::read_to_string(directory.path().join("e")).unwrap(), "x");
}

#[test]
fn sockets_and_special_files_stay_outside() {
    if skip_without_namespaces("sockets_and_special_files_stay_outside") {
        return;
    }
    let directory = host();
    let _listener = std::os::unix::net::UnixListener::bind(directory.path().join("daemon.sock")).unwrap();
    for level in [Level::Standard, Level::Strict, Level::Maximum] {
        let layers = host();
        let code = "import os, socket\ns = socket.socket(socket.AF_UNIX)\n\
                    try:\n s.connect('daemon.sock'); r = 'connected'\nexcept OSError as e: r = e.strerror\n\
                    os.mkfifo('pipe')\nr";
        let sandbox = over(directory.path(), layers.path()).level(level);
        let program = Program::code(toolpost_sandbox::Language::Python, code);
        let outcome = sandbox.run(&program, &Cancel::new(), &mut |_| {}).unwrap();
        assert_ne!(outcome.value, Some("connected".into()), "{level}");
        assert!(directory.path().join("pipe").symlink_metadata().is_err());
    }
}

#[test]
fn a_layer_is_limited_and_leaves_nothing_behind() {
    if skip_without_namespaces("a_layer_is_limited_and_leaves_nothing_behind") {
        return;
    }
    let directory = host();
    for (limits, script, verdict, reached) in [
        (
            Limits::default().with_layer_bytes(8 << 20),
            "head -c 64M /dev/zero > big; sleep 5",
            Verdict::Disk { limit: 8 << 20 },
            Reached::Disk,
        ),
        (
            Limits::default().with_layer_inodes(100),
            "for i in $(seq 500); do : > f$i; done; sleep 5",
            Verdict::Inodes { limit: 100 },
            Reached::Inodes,
        ),
    ] {
        let layers = host();
        let outcome = bash(&over(directory.path(), layers.path()).limits(limits), script);
        assert_eq!(outcome.verdict, verdict, "{}", outcome.stderr.text());
        assert!(outcome.report.reached.contains(&reached));
        assert_eq!(
            outcome.applied.unwrap().state,
            ApplyState::Applied,
            "a run that a limit ended is applied"
        );
    }
    let layers = host();
    let outcome = bash(&over(directory.path(), layers.path()), "cat big > /dev/null; ls > /dev/null");
    assert!(outcome.applied.is_none());
    drop(outcome);
    assert!(is_empty(layers.path()));
    for name in [".git", ".claude", ".bashrc"] {
        assert!(directory.path().join(name).symlink_metadata().is_err(), "no placeholders: {name}");
    }
}

/// Overlay file systems mark only the directory itself as replaced, not its subdirectories.
#[test]
fn a_replaced_directory_has_nothing_of_the_old_one() {
    if skip_without_namespaces("a_replaced_directory_has_nothing_of_the_old_one") {
        return;
    }
    let (directory, layers) = (host(), host());
    write(directory.path().join("d/a"), "old");
    write(directory.path().join("d/s/t/b"), "old");
    let program = Program::argv(["bash", "-c", "rm -r d; mkdir -p d/s/t; echo new > d/s/t/c"]);
    let outcome = over(directory.path(), layers.path()).run(&program, &Cancel::new(), &mut |_| ()).unwrap();
    assert_eq!(denied(&outcome), [""; 0]);
    let names = |path: &str| -> Vec<_> {
        fs::read_dir(directory.path().join(path)).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    assert_eq!(
        (names("d"), names("d/s"), names("d/s/t")),
        (vec!["s".into()], vec!["t".into()], vec!["c".into()])
    );
}

#[test]
fn apply_does_not_follow_links() {
    if skip_without_namespaces("apply_does_not_follow_links") {
        return;
    }
    let (directory, outside) = (host(), host());
    write(outside.path().join("file"), "outside");
    symlink(outside.path(), directory.path().join("link")).unwrap();
    write(directory.path().join("d/file"), "x");
    let swapped = directory.path().to_owned();
    let (target, layers) = (outside.path().to_owned(), host());
    let mut on_event = move |_: toolpost_sandbox::SandboxEvent<'_>| {
        fs::rename(swapped.join("d"), swapped.join("moved")).unwrap();
        symlink(&target, swapped.join("d")).unwrap();
    };
    let script = "rm link; mkdir link; echo evil > link/file; echo evil > d/file; echo go; sleep 0.2";
    let program = Program::argv(["bash", "-c", script]);
    let outcome = over(directory.path(), layers.path()).run(&program, &Cancel::new(), &mut on_event).unwrap();
    assert_eq!(fs::read_to_string(outside.path().join("file")).unwrap(), "outside");
    assert!(directory.path().join("link").symlink_metadata().unwrap().is_dir());
    assert!(denied(&outcome).contains(&"d".to_owned()) || denied(&outcome).contains(&"d/file".to_owned()));
    assert_eq!(fs::read_to_string(directory.path().join("moved/file")).unwrap(), "x");
}

#[test]
fn a_session_and_the_host_see_each_others_changes() {
    if skip_without_namespaces("a_session_and_the_host_see_each_others_changes") {
        return;
    }
    for language in [Language::Python, Language::JavaScript] {
        let (directory, layers) = (host(), host());
        let at = |name: &str| directory.path().join(name);
        write(at("sub/given"), "first");
        let session = Session::start(&over(directory.path(), layers.path()), language).unwrap();
        let run = |python: &str, javascript: &str| {
            let code = if language == Language::Python { python } else { javascript };
            let limits = CellLimits::default();
            let outcome = session.run(code, &limits, &Cancel::new(), &mut |_| {}).unwrap();
            assert_eq!(outcome.verdict, Verdict::Ok, "{code}: {}", outcome.stderr.text());
            outcome
        };
        // A lookup that fails, then the host's side, then an open; a working directory and a file held across
        // applies.
        run(
            "import os\nassert not os.path.exists('later')\nos.chdir('sub')\nheld = open('log', 'a')\nheld.write('1')\nheld.flush()",
            "var fs = require('fs'); fs.existsSync('later'); process.chdir('sub'); var held = fs.openSync('log', 'a'); fs.writeSync(held, '1')",
        );
        assert_eq!(fs::read_to_string(at("sub/log")).unwrap(), "1", "{language}");
        write(at("later"), "by the host");
        write(at("sub/given"), "second");
        let outcome = run(
            "held.write('2')\nheld.flush()\nopen('../later').read() + open('given').read()",
            "fs.writeSync(held, '2'); fs.readFileSync('../later', 'utf8') + fs.readFileSync('given', 'utf8')",
        );
        assert_eq!(outcome.value, Some("by the hostsecond".into()), "{language}");
        assert_eq!(fs::read_to_string(at("sub/log")).unwrap(), "12", "{language}");
        // Edited by code, edited by the host, read; and the same for deletions.
        run("open('given', 'w').write('code')", "fs.writeFileSync('given', 'code'); 0");
        assert_eq!(fs::read_to_string(at("sub/given")).unwrap(), "code", "{language}");
        fs::write(at("other"), "replaced").unwrap();
        fs::rename(at("other"), at("sub/given")).unwrap();
        fs::remove_file(at("later")).unwrap();
        let outcome = run(
            "open('given').read() + str(os.path.exists('../later'))",
            "fs.readFileSync('given', 'utf8') + (fs.existsSync('../later') ? 'True' : 'False')",
        );
        assert_eq!(outcome.value, Some("replacedFalse".into()), "{language}");
        let outcome = run(
            "open('../.envrc', 'w').write('x')\nos.remove('given')",
            "fs.writeFileSync('../.envrc', 'x'); fs.unlinkSync('given')",
        );
        assert_eq!(denied(&outcome), [".envrc"]);
        assert!(!at(".envrc").exists() && !at("sub/given").exists());
        drop(session);
        assert!(!at(".envrc").exists());
        assert_eq!(fs::read_to_string(at("sub/log")).unwrap(), "12");
        assert!(is_empty(layers.path()), "{language}");
    }
}

#[test]
fn an_interrupted_apply_is_finished_by_the_next_run() {
    if skip_without_namespaces("an_interrupted_apply_is_finished_by_the_next_run") {
        return;
    }
    let (directory, layers) = (host(), host());
    write(directory.path().join("one"), "before");
    let sandbox = over(directory.path(), layers.path());
    bash(&sandbox.clone().apply(ApplyMode::Hold), "echo 1 > one; echo 2 > two; echo x > .envrc");
    // The state after the host program was killed, with one file moved already.
    let mut entries = fs::read_dir(layers.path()).unwrap().map(|entry| entry.unwrap().path());
    let layer = entries.find(|path| path.is_dir()).unwrap();
    let record = fs::read_to_string(layer.join("layer.json")).unwrap();
    assert!(record.contains("\"held\""));
    write_record(layers.path(), &layer, &record.replace("\"held\"", "\"applying\""));
    fs::rename(layer.join("upper/two"), directory.path().join("two")).unwrap();
    let outcome = bash(&sandbox, "true");
    assert!(
        outcome.report.notes.iter().any(|note| note.contains("are applied now")),
        "{:?}",
        outcome.report.notes
    );
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap_or_default();
    assert_eq!((read("one"), read("two")), ("1\n".into(), "2\n".into()));
    assert!(!directory.path().join(".envrc").exists());
}

/// A killed process leaves a directory without a record.
#[test]
fn an_old_directory_without_a_record_is_removed() {
    if skip_without_namespaces("an_old_directory_without_a_record_is_removed") {
        return;
    }
    let (directory, layers) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_hours(1);
    for (name, has_record, time, is_removed) in [
        ("1-2-3abc", false, Some(hour_ago), true),
        ("1-2-4abc", false, None, false),
        ("1-2-5abc", true, Some(hour_ago), false),
        ("other", false, Some(hour_ago), false),
    ] {
        let path = layers.path().join(name);
        fs::create_dir_all(path.join("upper/d")).unwrap();
        write(path.join("upper/d/file"), "x");
        if has_record {
            write(path.join("layer.json"), "{}");
        }
        if let Some(time) = time {
            fs::File::open(&path).unwrap().set_modified(time).unwrap();
        }
        bash(&over(directory.path(), layers.path()), "echo x > made");
        assert_eq!(path.exists(), !is_removed, "{name}");
        let _ = fs::remove_dir_all(&path);
    }
}
