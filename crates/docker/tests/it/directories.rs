//! Host files in containers, and builds there.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Duration;

use toolpost_docker::image::Recipe;
use toolpost_docker::{Docker, DockerError, DockerHost, Options};
use toolpost_sandbox::{
    BuildCache, Error, Language, Layer, Limits, Outcome, Program, Sandbox, Source, Verdict, Workspace,
};

use super::daemon::Daemon;
use super::{docker_error, run, sandbox, shell};
use crate::support::open_directory;

#[test]
fn a_directory_is_copied_in_and_changes_are_copied_back() {
    let Some(daemon) = Daemon::get("a_directory_is_copied_in_and_changes_are_copied_back") else { return };
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    std::fs::create_dir_all(at("in/.git")).unwrap();
    // Empty directories are not copied, and counted.
    std::fs::create_dir_all(at("half/objects")).unwrap();
    let tool = "#!/bin/sh\necho tool ran\n";
    for (name, content) in [
        ("in/data", "one\n"),
        ("gone", "x"),
        ("kept", "k"),
        ("tool", tool),
        ("in/.git/config", "safe"),
        ("half/HEAD", "h"),
    ] {
        std::fs::write(at(name), content).unwrap();
    }
    std::fs::set_permissions(at("tool"), std::fs::Permissions::from_mode(0o755)).unwrap();
    symlink("/etc/passwd", at("link")).unwrap();
    let sandbox = sandbox(&daemon.docker())
        .workspace(Workspace::Host(place.path().into()))
        .file("uploaded", Source::Bytes(b"u".to_vec()));
    let code = "ls -A; ./tool; cat in/data; echo two >> in/data; rm gone; mkdir -p out; echo new > out/made
        printf '#!/bin/sh\\n' > out/script; chmod +x out/script; ln -s /etc/shadow out/link; echo evil > in/.git/config
        echo evil > .bashrc; echo new > CLAUDE.md; mkdir .git; mkdir .git/hooks; echo evil > .git/hooks/post-commit
        mkdir -p bare/objects bare/refs half/refs in/.git/objects/ab; echo x | tee bare/HEAD bare/config bare/objects/x bare/refs/x half/refs/x > /dev/null
        echo n > bare/notes; echo o > in/.git/objects/ab/cd; echo '* filter=evil' > .gitattributes; exit 3";
    let outcome = shell(&sandbox, code).unwrap();
    assert_eq!(outcome.verdict, Verdict::Exit { code: 3 });
    let text = outcome.stdout.text();
    assert_eq!(text, "gone\nhalf\nin\nkept\ntool\nuploaded\ntool ran\none\n", "{}", outcome.stderr.text());
    let content = |name: &str| std::fs::read_to_string(at(name)).ok();
    for (name, expected) in [
        ("in/data", Some("one\ntwo\n")),
        ("gone", None),
        ("kept", Some("k")),
        ("uploaded", Some("u")),
        ("out/made", Some("new\n")),
        ("out/link", None),
        ("in/.git/config", Some("safe")),
        (".bashrc", None),
        ("CLAUDE.md", Some("new\n")),
        ("bare/notes", Some("n\n")),
        ("bare/HEAD", None),
        ("bare/config", None),
        ("bare/objects/x", None),
        ("bare/refs/x", None),
        ("half/HEAD", Some("h")),
        ("half/refs/x", None),
        ("in/.git/objects/ab/cd", None),
        (".gitattributes", None),
        (".git/hooks/post-commit", None),
    ] {
        assert_eq!(content(name).as_deref(), expected, "{name}: {:?}", outcome.report.notes);
    }
    let made = std::fs::metadata(at("out/script")).unwrap();
    assert_eq!((made.uid(), made.mode() & 0o777), (std::fs::metadata(place.path()).unwrap().uid(), 0o755));
    let notes = outcome.report.notes.join("\n");
    for said in [
        "is a copy of the directory",
        "`.bashrc` is not copied back: the path is protected",
        "`.gitattributes` is not copied back: git executes",
        "1 links",
    ] {
        assert!(notes.contains(said), "{said}: {notes}");
    }
    assert!(outcome.report.has(Layer::WorkspaceQuota), "the limit counts for the copy");

    std::fs::write(at("large"), vec![1; 200_000]).unwrap();
    let small = sandbox.limits(Limits::default().with_workspace_bytes(100_000));
    assert!(matches!(shell(&small, "true").unwrap_err(), Error::TooLarge { what: "workspace", .. }));
}

#[test]
fn shown_paths_are_read_only() {
    let Some(daemon) = Daemon::get("shown_paths_are_read_only") else { return };
    let docker = daemon.docker();
    let place = open_directory();
    let file = place.path().join("a b");
    std::fs::write(&file, "shown").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    let shown = sandbox(&docker).read_only(place.path());
    let code = format!(
        "cat '{0}'; echo x 2>&1 > '{0}' | grep -c Read-only; touch {1}/new 2>/dev/null || echo refused",
        file.display(),
        place.path().display()
    );
    let outcome = shell(&shown, &code).unwrap();
    assert!(
        outcome.stdout.text().starts_with("shown") && outcome.stdout.text().ends_with("refused\n"),
        "{outcome:?}"
    );
    assert_eq!(std::fs::read(&file).unwrap(), b"shown");
    assert!(outcome.report.notes.iter().any(|note| note.contains("read-only")), "{:?}", outcome.report.notes);
    // The next run shows nothing.
    let outcome = shell(&sandbox(&docker), &format!("ls {}", place.path().display())).unwrap();
    assert!(!outcome.verdict.is_ok());

    let whole = sandbox(&docker).workspace(Workspace::ReadOnlyHost(place.path().into()));
    let outcome = shell(&whole, "cat 'a b'; touch new 2>/dev/null || echo refused").unwrap();
    assert_eq!(outcome.stdout.text(), "shownrefused\n", "{}", outcome.stderr.text());
    let unsupported = |sandbox: &Sandbox, program: &Program| {
        let error = run(sandbox, program).unwrap_err();
        assert!(matches!(docker_error(&error), DockerError::Unsupported { .. }), "{error}");
        error.to_string()
    };
    unsupported(&whole, &Program::code(Language::C, "x"));
    assert!(shell(&whole.file("a", Source::Bytes(vec![1])), "true").is_err());
    let DockerHost::Unix(socket) = &daemon.host else { panic!("a unix socket") };
    for path in [Path::new("/"), Path::new("/tmp"), Path::new("/proc/self"), Path::new("/dev/null")] {
        assert!(shell(&sandbox(&docker).read_only(path), "true").is_err(), "{}", path.display());
    }
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    for (path, reason) in
        [(socket.as_path(), "socket"), (socket.parent().unwrap(), "socket"), (&file, "65534")]
    {
        let text = unsupported(&sandbox(&docker).read_only(path), &Program::argv(["true"]));
        assert!(text.contains(reason), "{text}");
    }
}

/// A fake compiler: its result is the code itself, a script.
const COMPILER: &str = "#!/bin/sh
case \"$(cat main.c)\" in *refuse*) echo 'main.c: an error' >&2; exit 1;; esac
echo trace > left-by-the-build; echo trace > /tmp/left-by-the-build
cp main.c program && chmod +x program
";

#[test]
fn code_is_built_in_one_container_and_runs_in_another() {
    let Some(daemon) = Daemon::get("code_is_built_in_one_container_and_runs_in_another") else { return };
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("bin")).unwrap();
    std::fs::copy("/bin/busybox", root.path().join("bin/busybox")).unwrap();
    for name in ["sh", "cat", "cp", "chmod", "ls", "echo"] {
        symlink("busybox", root.path().join("bin").join(name)).unwrap();
    }
    let compiler = root.path().join("bin/cc");
    std::fs::write(&compiler, COMPILER).unwrap();
    std::fs::set_permissions(&compiler, std::fs::Permissions::from_mode(0o755)).unwrap();
    let tag = "toolpost/compiler-test:one";
    let images = daemon.images();
    images
        .build(&Recipe::Directory { path: root.path().into() }, tag, Duration::from_mins(1), &mut |_| {})
        .unwrap();
    let docker = Docker::connect(&daemon.host, Options::new(tag).idle_containers(0)).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let sandbox = sandbox(&docker)
        .file("given", Source::Bytes(b"given".to_vec()))
        .build_cache(BuildCache::at(cache.path().join("builds")).unwrap());
    let build = |code: &str| run(&sandbox, &Program::code(Language::C, code)).unwrap();
    let code = "#!/bin/sh\nls; ls /tmp; cat given; echo; echo made > made; exit 4\n";
    let outcome = build(code);
    assert_eq!(outcome.verdict, Verdict::Exit { code: 4 }, "{outcome:?}");
    assert_eq!(outcome.stdout.text(), "given\ngiven\n", "nothing of the build is there");
    let made: Vec<&str> = outcome.artifacts.iter().map(|artifact| artifact.path.as_str()).collect();
    assert_eq!(made, ["made"], "the program itself is not an artifact");
    let notes = |outcome: &Outcome| outcome.report.notes.join("\n");
    assert!(notes(&outcome).contains("in a separate container"), "{}", notes(&outcome));
    let again = build(code);
    assert_eq!(again.stdout.text(), "given\ngiven\n");
    assert!(notes(&again).contains("from the cache"), "{}", notes(&again));
    let refused = build("refuse");
    assert_eq!(refused.verdict, Verdict::Exit { code: 1 }, "{refused:?}");
    assert!(
        refused.stderr.text().contains("main.c: an error")
            && notes(&refused).contains("the code did not run")
    );
    drop(sandbox);
    drop(docker);
    images.remove(tag).unwrap();
}
