//! The private copy of a host directory, where no private layer is possible.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use toolpost_sandbox::{
    ApplyMode, ApplyState, Cancel, CellLimits, Error, HeldRun, Host, Language, Layer, Limits, OwnDirectory,
    Program, ProtectedPath, Reached, Sandbox, SandboxHint, Session, StagedDirectory, Verdict, Workspace,
    program_user,
};

use crate::support::{Mode, bash, open_directory, run};

/// A host directory with a directory for layers, on a host without namespaces.
struct Bench {
    place: tempfile::TempDir,
}

impl Bench {
    /// None where level `standard` needs namespaces.
    fn new() -> Option<Self> {
        if !Mode::available().contains(&Mode::Shared) {
            return None;
        }
        let place = open_directory();
        fs::create_dir(place.path().join("work")).unwrap();
        Some(Self { place })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.path().join("work").join(name)
    }

    fn layers(&self) -> PathBuf {
        self.place.path().join("layers")
    }

    fn write(&self, name: &str, content: &str) {
        fs::create_dir_all(self.at(name).parent().unwrap()).unwrap();
        fs::write(self.at(name), content).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap_or_else(|error| error.kind().to_string())
    }

    fn sandbox(&self) -> Sandbox {
        let workspace = Workspace::Host(self.place.path().join("work"));
        Mode::Shared.sandbox().workspace(workspace).layers(self.layers())
    }

    fn held(&self) -> Vec<HeldRun> {
        HeldRun::all(Some(&self.layers())).into_iter().filter(|run| run.directory() == self.at(".")).collect()
    }
}

#[test]
fn changes_of_a_copy_are_applied_and_undone_like_those_of_a_layer() {
    let Some(bench) = Bench::new() else { return };
    for name in ["kept", "changed", "deleted", "d/inner", "part/file"] {
        bench.write(name, "before");
    }
    std::os::unix::net::UnixListener::bind(bench.at("part/socket")).unwrap();
    symlink("kept", bench.at("link")).unwrap();
    let kept = fs::metadata(bench.at("kept")).unwrap();
    let outcome = bash(
        &bench.sandbox().file("upload", toolpost_sandbox::Source::Bytes(b"up".to_vec())),
        "echo after > changed; rm deleted; rm -r d part; mkdir -p new/deep; echo 1 > new/deep/file; ln -s x link2
         mkdir -p .git/hooks; echo x > .git/hooks/pre-commit; echo x > .mcp.json; mkfifo pipe
         echo cache > ~/cache; echo temporary > $TMPDIR/temporary; cat kept upload; echo; pwd; echo $TOOLPOST_WORKDIR",
    );
    assert_eq!(outcome.verdict, Verdict::Ok, "{}", outcome.stderr.text());
    let report = &outcome.report;
    assert!(report.has(Layer::PrivateCopy) && report.has(Layer::ProtectedPaths), "{report:?}");
    assert!(!report.has(Layer::PrivateLayer));
    assert!(report.notes.iter().any(|note| note.contains("TOOLPOST_WORKDIR")), "{:?}", report.notes);
    let printed = outcome.stdout.text();
    let [first, directory, variable] = printed.lines().collect::<Vec<_>>()[..] else { panic!("{printed}") };
    assert_eq!((first, directory), ("beforeup", variable));
    assert!(!Path::new(directory).exists(), "the copy is gone");
    let names = |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
    assert_eq!(names(&outcome.changes.changed), ["changed"]);
    assert_eq!(names(&outcome.changes.deleted), ["d", "deleted", "part/file"]);
    let new = names(&outcome.changes.new);
    assert!(new.contains(&"new/deep/file".into()) && !new.contains(&"upload".into()), "{new:?}");
    assert_eq!(
        outcome.artifacts.iter().find(|one| one.path == "changed").unwrap().read().unwrap(),
        b"after\n"
    );
    let applied = outcome.applied.as_ref().unwrap();
    assert_eq!((applied.state, applied.can_undo), (ApplyState::Applied, true));
    let mut denied: Vec<_> = applied.denied.iter().map(|denied| denied.path.display().to_string()).collect();
    denied.sort();
    assert_eq!(denied, [".git", ".mcp.json", "pipe"]);
    assert_eq!(
        [bench.read("changed"), bench.read("new/deep/file"), bench.read("upload")],
        ["after\n", "1\n", "up"]
    );
    assert!(!bench.at("deleted").exists() && !bench.at("d").exists() && !bench.at("part/file").exists());
    assert!(bench.at("part/socket").exists() && !bench.at(".git").exists() && !bench.at("cache").exists());
    let (old, new) =
        (fs::metadata(bench.at("kept")).unwrap(), fs::metadata(bench.at("new/deep/file")).unwrap());
    assert_eq!((old.ino(), new.uid()), (kept.ino(), fs::metadata(bench.at(".")).unwrap().uid()));
    drop(outcome);
    let undone = bench.held().pop().unwrap().undo().unwrap();
    assert_eq!(undone.denied, []);
    assert_eq!([bench.read("changed"), bench.read("deleted"), bench.read("d/inner")], ["before"; 3]);
    assert!(!bench.at("new").exists());
}

#[test]
fn the_original_is_readable_and_never_writable() {
    let Some(bench) = Bench::new() else { return };
    bench.write("file", "before");
    fs::set_permissions(bench.at("file"), fs::Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(bench.at("."), fs::Permissions::from_mode(0o777)).unwrap();
    let script = format!(
        "cd {}; cat file; echo x > file; echo x > new; rm file; mv file other; ln file hard; mkdir d
         python3 -c 'import os; os.truncate(\"file\", 0)'; python3 -c 'import os; os.open(\"file\", os.O_TRUNC)'; true",
        bench.at(".").display()
    );
    for landlock in [1, 2, 3, u32::MAX] {
        let host = Mode::Shared.host().with_landlock(landlock);
        let outcome = bash(&bench.sandbox().host(host), &script);
        assert_eq!(
            (outcome.verdict, &*outcome.stdout.text()),
            (Verdict::Ok, "before"),
            "Landlock {landlock}"
        );
        assert_eq!(bench.read("file"), "before", "Landlock {landlock}");
        assert_eq!(fs::read_dir(bench.at(".")).unwrap().count(), 1, "Landlock {landlock}");
        assert_eq!(outcome.changes, toolpost_sandbox::Changes::default());
    }
}

#[test]
fn own_files_are_neither_copied_nor_readable() {
    let Some(bench) = Bench::new() else { return };
    bench.write("state/secret", "secret");
    bench.write("file", "x");
    let sandbox = bench.sandbox().protect([ProtectedPath::Own(bench.at("state"))]);
    let outcome =
        bash(&sandbox, &format!("ls; cat state/secret {0}/state/secret; ls {0}", bench.at("").display()));
    assert_eq!(outcome.stdout.text(), "file\n", "{}", outcome.stderr.text());
    let outcome = bash(&sandbox, "mkdir state; echo x > state/secret; echo x > other");
    assert_eq!([bench.read("state/secret"), bench.read("other")], ["secret", "x\n"]);
    assert!(outcome.applied.unwrap().denied_count > 0);
}

#[test]
fn the_copy_is_held_discarded_or_removed_as_the_caller_says() {
    let Some(bench) = Bench::new() else { return };
    bench.write("file", "before");
    let outcome = bash(&bench.sandbox().apply(ApplyMode::Discard), "echo after > file");
    assert_eq!(outcome.applied.as_ref().unwrap().state, ApplyState::Discarded);
    drop(outcome);
    assert_eq!((bench.read("file"), bench.held().len()), ("before".to_owned(), 0));
    let outcome =
        bash(&bench.sandbox().apply(ApplyMode::Hold), "echo after > file; rm -f nothing; echo x > new");
    assert_eq!(outcome.applied.as_ref().unwrap().state, ApplyState::Held);
    drop(outcome);
    assert_eq!(bench.read("file"), "before");
    let applied = bench.held().pop().unwrap().apply(&[]).unwrap();
    assert_eq!((applied.changed, bench.read("file").as_str()), (2, "after\n"));
    // A mass deletion.
    for number in 0..30 {
        bench.write(&format!("many/{number}"), "x");
    }
    let outcome = bash(&bench.sandbox(), "rm -r ./*");
    assert_eq!(outcome.applied.as_ref().unwrap().state, ApplyState::Held);
    drop(outcome);
    assert!(bench.at("many/7").exists());
    bench.held().into_iter().for_each(HeldRun::discard);
    // What the host changed meanwhile.
    let script = "echo program > file; sleep 1";
    let at = bench.at("file");
    let host = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(500));
        fs::write(at, "host").unwrap();
    });
    let outcome = bash(&bench.sandbox(), script);
    host.join().unwrap();
    assert_eq!(bench.read("file"), "host");
    assert_eq!(outcome.applied.unwrap().denied.len(), 1);
}

#[test]
fn a_directory_that_is_too_large_names_the_alternative() {
    let Some(bench) = Bench::new() else { return };
    for number in 0..20 {
        bench.write(&format!("{number}"), "0123456789");
    }
    bench.write("large", &"x".repeat(3 << 20));
    for (limits, reason) in [
        (Limits::default().with_layer_bytes(2 << 20), "2 MiB"),
        (Limits::default().with_layer_inodes(16), "16 entries"),
    ] {
        let error = run(&bench.sandbox().limits(limits), &Program::argv(["true"])).unwrap_err();
        assert!(matches!(error, Error::CopyTooLarge { .. }), "{error}");
        assert!(
            error.to_string().contains(reason) && error.hint() == Some(SandboxHint::WriteLive),
            "{error}"
        );
    }
    assert!(bench.held().is_empty());
    // What was there does not count as written, and temporary files do.
    let sandbox = bench.sandbox().limits(Limits::default().with_layer_inodes(40));
    let outcome = bash(&sandbox, "for i in $(seq 60); do touch $TMPDIR/a$i; done; sleep 5");
    assert_eq!(outcome.verdict, Verdict::Inodes { limit: 40 });
    let outcome = bash(&sandbox, "for i in $(seq 15); do touch b$i; done; sleep 0.5");
    assert_eq!(outcome.verdict, Verdict::Ok, "{:?}", outcome.report);
    let outcome = bash(&sandbox, "for i in $(seq 60); do touch c$i; done; sleep 5");
    assert_eq!(
        (outcome.verdict, outcome.report.reached),
        (Verdict::Inodes { limit: 40 }, vec![Reached::Inodes])
    );
}

#[test]
fn a_live_program_applies_and_sees_the_changes_of_others() {
    let Some(bench) = Bench::new() else { return };
    for name in ["file", "deleted", "sub/file"] {
        bench.write(name, "before");
    }
    let script = "while read -r line; do sh -c \"$line\"; echo done; done";
    let mut running = bench.sandbox().start(&Program::argv(["bash", "-c", script])).unwrap();
    let directory = running.host_directory();
    let mut stdin = running.take_stdin().unwrap();
    let (stdout, _stderr) = running.take_output().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stdout));
    let mut work = |line: &str| {
        use std::io::Write as _;
        writeln!(stdin, "{line}").unwrap();
        let mut printed = Vec::new();
        loop {
            match lines.next().unwrap().unwrap() {
                line if line == "done" => return printed,
                line => printed.push(line),
            }
        }
    };
    work(
        "echo one > file; rm deleted; mkdir -p a/b; echo new > a/b/c; mkdir .vscode; echo x > .vscode/tasks.json",
    );
    let applied = directory.apply().unwrap().unwrap();
    assert_eq!([bench.read("file"), bench.read("a/b/c")], ["one\n", "new\n"], "{applied:?}");
    assert!(!bench.at("deleted").exists() && !bench.at(".vscode").exists());
    assert_eq!(applied.denied.len(), 1, "{applied:?}");
    assert!(directory.apply().unwrap().is_none(), "nothing is applied or reported twice");
    bench.write("file", "host");
    bench.write("other/by-host", "host");
    fs::remove_file(bench.at("sub/file")).unwrap();
    directory.refresh();
    assert_eq!(work("cat file other/by-host; ls sub | wc -l; echo"), ["hosthost0", ""]);
    assert!(directory.apply().unwrap().is_none(), "the host's own changes are none of the program");
    work("echo two >> file; echo last > last");
    drop(stdin);
    let outcome = running.wait().unwrap();
    assert_eq!(outcome.verdict, Verdict::Ok);
    assert_eq!(
        [bench.read("file"), bench.read("last"), bench.read("other/by-host")],
        ["hosttwo\n", "last\n", "host"]
    );
    assert!(bench.held().is_empty());
}

#[test]
fn a_session_works_in_a_copy() {
    let Some(bench) = Bench::new() else { return };
    bench.write("file", "before");
    let session = Session::start(&bench.sandbox(), Language::Python).unwrap();
    let run = |code: &str| session.run(code, &CellLimits::default(), &Cancel::new(), &mut |_| {}).unwrap();
    let outcome = run("text = open('file').read(); open('file', 'w').write('one'); text");
    assert_eq!(outcome.value, Some("before".into()), "{}", outcome.stderr.text());
    assert_eq!(bench.read("file"), "one");
    bench.write("file", "host");
    assert_eq!(run("open('file').read()").value, Some("host".into()));
    run("open('new', 'w').write('new')");
    drop(session);
    assert_eq!(bench.read("new"), "new");
}

#[test]
fn a_directory_of_this_process_needs_no_copy() {
    let Some(bench) = Bench::new() else { return };
    bench.write("file", "before");
    if let Some(user) = program_user() {
        for path in [bench.at("."), bench.at("file")] {
            std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
        }
    }
    let own = OwnDirectory::mark(&bench.at("")).unwrap();
    let outcome = bash(&bench.sandbox(), "echo after > file; pwd");
    assert_eq!(outcome.stdout.text().trim(), bench.at("").canonicalize().unwrap().to_str().unwrap());
    assert!(!outcome.report.has(Layer::PrivateCopy) && outcome.applied.is_none());
    assert_eq!(bench.read("file"), "after\n");
    drop(own);
    assert!(bash(&bench.sandbox(), "true").report.has(Layer::PrivateCopy));
}

#[test]
fn a_staged_copy_is_used_itself() {
    let Some(bench) = Bench::new() else { return };
    bench.write("file", "before");
    let host: Host = Mode::Shared.host();
    let staged =
        StagedDirectory::copy(&bench.at(""), &bench.sandbox().host(host).apply(ApplyMode::Now)).unwrap();
    let outcome = bash(
        &bench.sandbox().workspace(Workspace::Host(staged.path().into())),
        "echo after > file; echo x > new",
    );
    assert_eq!(outcome.verdict, Verdict::Ok, "{}", outcome.stderr.text());
    assert!(outcome.report.has(Layer::PrivateCopy) && outcome.applied.is_none());
    assert_eq!(bench.read("file"), "before");
    staged.end().unwrap();
    assert_eq!([bench.read("file"), bench.read("new")], ["after\n", "x\n"]);
}

#[test]
fn root_lends_a_live_directory() {
    let Some(bench) = Bench::new() else { return };
    bench.write("file", "before");
    fs::set_permissions(bench.at("file"), fs::Permissions::from_mode(0o600)).unwrap();
    let owner = fs::metadata(bench.at("")).unwrap().uid();
    let sandbox = bench.sandbox().workspace(Workspace::LiveHost(bench.at("")));
    let outcome = bash(&sandbox, "cat file; echo after > file; mkdir d; echo new > d/new; stat -c %u file");
    assert_eq!(outcome.verdict, Verdict::Ok, "{}", outcome.stderr.text());
    assert_eq!([bench.read("file"), bench.read("d/new")], ["after\n", "new\n"]);
    for name in ["", "file", "d", "d/new"] {
        assert_eq!(fs::metadata(bench.at(name)).unwrap().uid(), owner, "{name}");
    }
    let noted = outcome.report.notes.iter().any(|note| note.contains("owned the files"));
    assert_eq!(noted, program_user().is_some(), "{:?}", outcome.report.notes);
}
