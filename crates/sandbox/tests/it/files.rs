//! Files in and out, and host directories as workspace.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use toolpost_sandbox::{Error, Language, Layer, Program, Source, Verdict, Workspace};

use crate::support::{Mode, PROTECTED_PATHS, bash, open_directory, python, quick, run};

fn names(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.to_string_lossy().into_owned()).collect()
}

#[test]
fn uploads_are_there_and_changes_come_back() {
    let source = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(source.path(), "from a path").unwrap();
    for mode in Mode::available() {
        let sandbox = mode
            .sandbox()
            .file("data/in.csv", Source::Bytes(b"a,b\n1,2\n".to_vec()))
            .file("old.txt", Source::Path(source.path().to_owned()))
            .file("gone.txt", Source::Bytes(b"x".to_vec()));
        let outcome = bash(
            &sandbox,
            "cat data/in.csv old.txt; echo more >> old.txt; rm gone.txt; mkdir -p out; echo '{}' > out/r.json; echo x >> data/in.csv; touch data/new",
        );
        assert_eq!(outcome.stdout.text(), "a,b\n1,2\nfrom a path", "{mode:?} {}", outcome.stderr.text());
        assert_eq!(names(&outcome.changes.new), ["data/new", "out/r.json"]);
        assert_eq!(names(&outcome.changes.changed), ["data/in.csv", "old.txt"]);
        assert_eq!(names(&outcome.changes.deleted), ["gone.txt"]);
        let json = outcome.artifacts.iter().find(|artifact| artifact.path == "out/r.json").unwrap();
        assert_eq!((json.media_type, json.size), ("application/json", 3));
        assert_eq!(json.read().unwrap(), b"{}\n");
        let target = tempfile::tempdir().unwrap();
        let export = || -> Vec<PathBuf> {
            outcome.export(target.path()).unwrap().into_iter().map(Result::unwrap).collect()
        };
        let first = export();
        assert_eq!(first.len(), 4);
        let second = export();
        assert!(second.iter().all(|path| !first.contains(path) && path.exists()));
        assert!(first.iter().all(|path| path.metadata().unwrap().mode() & 0o111 == 0));
    }
}

#[test]
fn uploads_with_hostile_names_are_rejected() {
    for name in ["../x", "/etc/x", "a\0b", "a\nb", "-rf", "CON", "a/../../b", ""] {
        let sandbox = Mode::available()[0].sandbox().file(name, Source::Bytes(vec![]));
        assert!(
            matches!(run(&sandbox, &Program::argv(["true"])), Err(Error::InvalidName { .. })),
            "{name:?}"
        );
    }
    let sandbox = Mode::available()[0].sandbox().file("x", Source::Path("/dev/zero".into()));
    assert!(matches!(run(&sandbox, &Program::argv(["true"])), Err(Error::File { .. })));
    let sandbox = Mode::available()[0]
        .sandbox()
        .limits(quick().with_workspace_bytes(4096))
        .file("x", Source::Bytes(vec![0; 10_000]));
    assert!(matches!(run(&sandbox, &Program::argv(["true"])), Err(Error::TooLarge { .. })));
}

#[test]
fn only_regular_files_become_artifacts() {
    let secret = open_directory();
    let secret_file = secret.path().join("secret");
    std::fs::write(&secret_file, "secret of the host").unwrap();
    let code = format!(
        "import os, socket\n\
         os.symlink({0:?}, 'link')\nos.symlink('/etc/passwd', 'passwd')\nos.mkfifo('fifo')\nos.mkdir('directory')\n\
         try: socket.socket(socket.AF_UNIX).bind('socket')\nexcept OSError: pass\n\
         open('one', 'w').write('x')\nos.link('one', 'two')\n\
         os.truncate(os.open('sparse', os.O_CREAT | os.O_RDWR), 90 << 20)\n\
         for name in ['-rf', 'new\\nline', 'CON', 'back\\\\slash', 'rtl\\u202e', 'x' * 255]: open(name, 'w').close()\n\
         open(b'\\xff\\xfe', 'w').close()\nopen('good', 'w').write('good')\n\
         d = 'deep/' * 300\nfor _ in range(300):\n    os.mkdir('deep'); os.chdir('deep')\n",
        secret_file.display().to_string()
    );
    for mode in Mode::available() {
        let outcome = python(&mode.sandbox().limits(quick().with_artifacts(500)), &code);
        // Without a kernel limit for the workspace, directories too deep to count end a run that is slow
        // enough to be checked.
        let uncounted =
            !outcome.report.has(Layer::WorkspaceQuota) && matches!(outcome.verdict, Verdict::Disk { .. });
        assert!(
            outcome.verdict == Verdict::Ok || uncounted,
            "{:?} {}",
            outcome.verdict,
            outcome.stderr.text()
        );
        let mut found: Vec<_> = outcome.artifacts.iter().map(|artifact| artifact.path.clone()).collect();
        found.retain(|name| name.len() < 255);
        assert_eq!(found, ["good"], "{mode:?}");
        let target = tempfile::tempdir().unwrap();
        outcome.export(target.path()).unwrap();
        assert_eq!(std::fs::read(target.path().join("good")).unwrap(), b"good");
    }
}

#[test]
fn the_number_and_size_of_artifacts_are_limited() {
    let code = "for i in range(20): open(f'f{i:02}', 'w').write('x' * 1000)";
    for mode in Mode::available() {
        let outcome = python(&mode.sandbox().limits(quick().with_artifacts(5)), code);
        assert_eq!((outcome.artifacts.len(), outcome.changes.new.len()), (5, 20));
        let outcome = python(&mode.sandbox().limits(quick().with_artifact_bytes(3500)), code);
        assert_eq!(outcome.artifacts.len(), 3);
        assert!(outcome.report.reached.contains(&toolpost_sandbox::Reached::Artifacts));
        assert!(outcome.report.notes[0].contains("f03"), "{:?}", outcome.report.notes);
    }
}

/// The modes that support a host directory as workspace.
fn with_masks() -> Vec<Mode> {
    Mode::available().into_iter().filter(|mode| *mode != Mode::Shared).collect()
}

#[test]
fn a_host_directory_is_written_as_its_owner() {
    for mode in with_masks() {
        let directory = tempfile::tempdir().unwrap();
        // Even one that only its owner can enter.
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::write(directory.path().join("in"), "input").unwrap();
        std::fs::set_permissions(directory.path().join("in"), std::fs::Permissions::from_mode(0o600))
            .unwrap();
        let sandbox = mode.sandbox().workspace(Workspace::Host(directory.path().to_owned()));
        let sandbox = sandbox.file("up.txt", Source::Bytes(b"up".to_vec()));
        let outcome =
            bash(&sandbox, "cat in up.txt; echo new > out; echo changed >> in; mkdir d; pwd; id -u");
        let text = outcome.stdout.text();
        assert_eq!(outcome.verdict, Verdict::Ok, "{mode:?} {}", outcome.stderr.text());
        let place =
            if mode == Mode::Strict { "/workspace".into() } else { directory.path().display().to_string() };
        assert_eq!(text, format!("inputup{place}\n1000\n"));
        let own = std::fs::metadata(directory.path()).unwrap().uid();
        for name in ["in", "out", "up.txt", "d"] {
            assert_eq!(std::fs::metadata(directory.path().join(name)).unwrap().uid(), own, "{name}");
        }
        assert_eq!(names(&outcome.changes.new), ["out"]);
        assert_eq!(names(&outcome.changes.changed), ["in"]);
        assert!(outcome.report.has(Layer::ProtectedPaths));
        let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 4, "placeholders are gone: {left:?}");
    }
}

#[test]
fn existing_and_missing_protected_paths_do_not_change() {
    for mode in with_masks() {
        for with_repository in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            if with_repository {
                std::fs::create_dir_all(directory.path().join(".git/hooks")).unwrap();
                std::fs::write(directory.path().join(".git/config"), "[core]\n").unwrap();
                std::fs::write(directory.path().join("CLAUDE.md"), "original\n").unwrap();
                std::fs::create_dir(directory.path().join(".claude")).unwrap();
            }
            let sandbox = mode.sandbox().workspace(Workspace::Host(directory.path().to_owned()));
            let mut code = String::from(
                "import os\nresults = {}\ndef attempt(name, action):\n    try:\n        action(); results[name] = 'allowed'\n    except OSError as e:\n        results[name] = 'refused'\n",
            );
            for path in PROTECTED_PATHS {
                let attempts = format!(
                    "attempt('write {path}', lambda: open('{path}', 'w').write('evil'))\n\
                     attempt('inside {path}', lambda: open('{path}/evil', 'w').write('evil'))\n\
                     attempt('rename {path}', lambda: os.rename('{path}', 'moved'))\n\
                     attempt('remove {path}', lambda: os.remove('{path}'))\n\
                     attempt('replace {path}', lambda: (open('evil', 'w').close(), os.replace('evil', '{path}')))\n\
                     attempt('link {path}', lambda: os.link('evil', '{path}'))\n"
                );
                code.push_str(&attempts);
            }
            code.push_str(
                "attempt('rename .git', lambda: os.rename('.git', 'git2'))\n\
                 attempt('exchange', lambda: (os.makedirs('git3/hooks'), os.replace('git3', '.git')))\n\
                 attempt('chmod', lambda: os.chmod('.git/hooks', 0o777))\n\
                 [name for name, result in results.items() if result == 'allowed']",
            );
            let outcome = python(&sandbox, &code);
            assert!(outcome.value.is_some(), "{mode:?} {with_repository} {}", outcome.stderr.text());
            // New instructions to agents are marked, not denied.
            for path in
                PROTECTED_PATHS.into_iter().filter(|path| *path != "AGENTS.md" && *path != "CLAUDE.md")
            {
                let path = directory.path().join(path);
                assert_eq!(path.exists(), with_repository && is_original(&path), "{}", path.display());
            }
            if with_repository {
                assert_eq!(std::fs::read(directory.path().join("CLAUDE.md")).unwrap(), b"original\n");
                assert_eq!(std::fs::read_dir(directory.path().join(".git/hooks")).unwrap().count(), 0);
            }
        }
    }
}

fn is_original(path: &Path) -> bool {
    [".git/hooks", ".git/config", "CLAUDE.md", ".claude"].iter().any(|name| path.ends_with(name))
}

/// Protections during a run are not changes of the run.
#[test]
fn placeholders_are_no_changes() {
    for mode in with_masks() {
        let directory = open_directory();
        let sandbox = mode.sandbox().workspace(Workspace::Host(directory.path().to_owned()));
        let outcome = run(&sandbox, &Program::argv(["touch", "made"])).unwrap();
        assert_eq!(names(&outcome.changes.new), ["made"], "{:?}", outcome.changes);
        assert!(
            outcome.changes.deleted.is_empty() && outcome.changes.changed.is_empty(),
            "{:?}",
            outcome.changes
        );
    }
}

#[test]
fn git_works_in_a_protected_repository() {
    for mode in with_masks() {
        let directory = tempfile::tempdir().unwrap();
        #[expect(clippy::disallowed_methods, reason = "prepares a repository on the host")]
        let made =
            std::process::Command::new("git").args(["init", "-q"]).current_dir(directory.path()).status();
        if !made.is_ok_and(|status| status.success()) {
            println!("SKIP git_works_in_a_protected_repository: git is not installed");
            return;
        }
        let sandbox = mode.sandbox().workspace(Workspace::Host(directory.path().to_owned()));
        let code = "echo hi > file && git add file && git -c user.name=a -c user.email=a@b commit -qm first && git log --oneline | wc -l";
        let outcome = bash(&sandbox, code);
        assert_eq!(outcome.stdout.text().trim(), "1", "{mode:?} {}", outcome.stderr.text());
        #[expect(clippy::disallowed_methods, reason = "the host looks at the result")]
        let log = std::process::Command::new("git")
            .arg("-C")
            .arg(directory.path())
            .args(["log", "--format=%s"])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&log.stdout), "first\n");
    }
}

#[test]
fn invalid_workspaces_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("elsewhere", directory.path().join("CLAUDE.md")).unwrap();
    for path in ["/", "/proc", "/dev", "/sys", "/no/such", "/etc/passwd", directory.path().to_str().unwrap()]
    {
        for mode in with_masks() {
            let live = Workspace::LiveHost(path.into());
            let layered = Workspace::Host(path.into());
            for workspace in [live, layered] {
                let error = run(&mode.sandbox().workspace(workspace.clone()), &Program::argv(["true"]));
                // Only a live directory needs masks over paths that must not be links.
                let is_fit = Path::new(path) == directory.path() && matches!(workspace, Workspace::Host(_));
                assert_eq!(error.is_ok(), is_fit, "{path} {error:?}");
                assert!(is_fit || matches!(error, Err(Error::Workspace { .. })), "{path} {error:?}");
            }
        }
    }
}

#[test]
fn without_masks_a_host_directory_needs_consent_and_is_reported() {
    if !Mode::available().contains(&Mode::Shared) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let sandbox = Mode::Shared.sandbox().workspace(Workspace::LiveHost(directory.path().to_owned()));
    let outcome = run(&sandbox, &Program::code(Language::Bash, "echo x > out")).unwrap();
    assert_eq!(outcome.verdict, Verdict::Ok, "{}", outcome.stderr.text());
    assert!(directory.path().join("out").exists());
    assert!(outcome.report.missing.iter().any(|missing| missing.layer == Layer::ProtectedPaths));
}

#[test]
fn a_read_only_directory_cannot_be_written() {
    for mode in Mode::available() {
        let directory = open_directory();
        std::fs::create_dir(directory.path().join("sub")).unwrap();
        std::fs::set_permissions(directory.path().join("sub"), std::fs::Permissions::from_mode(0o777))
            .unwrap();
        std::fs::write(directory.path().join("sub/in"), "input").unwrap();
        let sandbox = mode.sandbox().workspace(Workspace::ReadOnlyHost(directory.path().to_owned()));
        let outcome = bash(
            &sandbox,
            "cat sub/in; echo x > out || echo x > sub/in || rm sub/in || mkdir d || echo refused",
        );
        assert_eq!(outcome.stdout.text(), "inputrefused\n", "{mode:?} {}", outcome.stderr.text());
        assert_eq!(outcome.changes, toolpost_sandbox::Changes::default());
        let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "no placeholder: {left:?}");
        let error = run(&sandbox.file("up", Source::Bytes(vec![])), &Program::argv(["true"])).unwrap_err();
        assert!(matches!(error, Error::Workspace { .. }), "{error}");
    }
}

#[test]
fn a_program_starts_in_a_directory_of_its_workspace() {
    for mode in with_masks() {
        let directory = open_directory();
        std::fs::create_dir_all(directory.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("/etc", directory.path().join("out")).unwrap();
        let sandbox = mode.sandbox().workspace(Workspace::ReadOnlyHost(directory.path().to_owned()));
        let outcome = bash(&sandbox.clone().directory("a/b"), "basename $PWD; ls -a ../..");
        assert_eq!(outcome.stdout.text(), "b\n.\n..\na\nout\n", "{mode:?} {}", outcome.stderr.text());
        let missing = run(&sandbox.clone().directory("none"), &Program::argv(["true"])).unwrap_err();
        assert!(missing.to_string().contains("none"), "{missing}");
        for hostile in ["..", "/etc", "a/../..", ""] {
            let error = run(&sandbox.clone().directory(hostile), &Program::argv(["true"])).unwrap_err();
            assert!(matches!(error, Error::InvalidName { .. }), "{hostile} {error}");
        }
        // A link never shows more than the program already sees.
        let outcome = bash(&sandbox.directory("out"), "touch evil || echo refused");
        assert_eq!(outcome.stdout.text(), "refused\n", "{mode:?}");
    }
}

#[test]
fn repositories_beneath_a_host_directory_do_not_change() {
    for mode in Mode::available().into_iter().filter(|mode| *mode != Mode::Shared) {
        let directory = open_directory();
        let at = |path: &str| directory.path().join(path);
        for path in ["sub/deep/.git/hooks", "other"] {
            std::fs::create_dir_all(at(path)).unwrap();
        }
        std::fs::write(at("other/.git"), "gitdir: ../x\n").unwrap();
        std::fs::write(at("sub/file"), "x").unwrap();
        let sandbox = mode.sandbox().workspace(Workspace::Host(directory.path().to_owned()));
        let code = "import os\ndone = []\ndef attempt(what, *arguments):\n    try:\n        what(*arguments)\n        done.append(arguments)\n    except OSError: pass\n\
                    for path in ('sub/deep/.git/hooks/pre-commit', 'sub/deep/.git/config', 'other/.git'): attempt(open, path, 'w')\n\
                    for path in ('sub/deep/.git', 'other/.git'): attempt(os.rename, path, 'y')\n\
                    attempt(os.remove, 'other/.git')\nattempt(os.rmdir, 'sub/deep/.git/hooks')\n\
                    os.makedirs('sub/deep', exist_ok=True)\nopen('sub/file', 'w').write('new\\n')\nopen('sub/deep/file', 'w').write('new\\n')\ndone";
        let outcome = python(&sandbox, code);
        assert!(outcome.report.has(Layer::ProtectedPaths), "{outcome:?}");
        assert!(!at("sub/deep/.git/hooks/pre-commit").exists(), "{mode:?} {outcome:?}");
        assert!(!at("sub/deep/.git/config").exists());
        assert_eq!(std::fs::read_to_string(at("other/.git")).unwrap(), "gitdir: ../x\n");
        assert_eq!(
            std::fs::read_to_string(at("sub/file")).unwrap(),
            "new\n",
            "the rest stays writable: {outcome:?}"
        );
        assert_eq!(std::fs::read_to_string(at("sub/deep/file")).unwrap(), "new\n");
        // An upload, whose name may come from a model, cannot write there either.
        let upload = sandbox.file("sub/deep/.git/hooks/post-commit", Source::Bytes(b"x".into()));
        assert!(run(&upload, &Program::argv(["true"])).is_err());
    }
}
