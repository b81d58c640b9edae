//! Common programs in a private layer. Each difference from a plain directory has a test here and a line in
//! `toolpost help apply`.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use toolpost_sandbox::{
    Cancel, CellLimits, HeldRun, Language, Limits, Outcome, Program, Sandbox, Session, Verdict, Workspace,
};

use crate::support::skip_without_namespaces;

/// Runs a script with `bash` in a host directory.
fn run_in(directory: &Path, layers: &Path, script: &str) -> Outcome {
    run_argv(directory, layers, &["bash", "-c", script])
}

fn run_argv(directory: &Path, layers: &Path, argv: &[&str]) -> Outcome {
    let limits = Limits::default().with_wall(Duration::from_secs(100)).with_file_size(1 << 40);
    let mut sandbox =
        Sandbox::new().workspace(Workspace::Host(directory.to_owned())).layers(layers).limits(limits);
    if let Some(search) = search_path() {
        sandbox = sandbox.search_path(search);
    }
    sandbox.run(&Program::argv(argv.iter().copied()), &Cancel::new(), &mut |_| {}).unwrap()
}

fn run(directory: &Path, script: &str) -> Outcome {
    let layers = tempfile::tempdir().unwrap();
    let outcome = run_in(directory, layers.path(), script);
    assert_eq!(outcome.verdict, Verdict::Ok, "{script}: {}", outcome.stderr.text());
    outcome
}

#[expect(clippy::disallowed_methods, reason = "programs of this machine are looked up as a person does")]
fn search_path() -> Option<std::ffi::OsString> {
    std::env::var_os("PATH")
}

fn is_installed(program: &str) -> bool {
    search_path().is_some_and(|search| {
        std::env::split_paths(&search).any(|directory| directory.join(program).is_file())
    })
}

fn denied(outcome: &Outcome) -> Vec<String> {
    let applied = outcome.applied.as_ref().unwrap();
    applied.denied.iter().map(|denied| denied.path.display().to_string()).collect()
}

#[test]
fn a_second_cargo_build_rebuilds_nothing() {
    const NAME: &str = "a_second_cargo_build_rebuilds_nothing";
    if skip_without_namespaces(NAME) {
        return;
    }
    if !is_installed("cargo") || !is_installed("cc") {
        println!("SKIP {NAME}: cargo or cc is not installed");
        return;
    }
    let (directory, layers) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = |name: &str| directory.path().join(name);
    fs::write(at("Cargo.toml"), "[package]\nname = \"hello\"\nversion = \"0.1.0\"\nedition = \"2021\"\n")
        .unwrap();
    fs::create_dir(at("src")).unwrap();
    fs::write(at("src/main.rs"), "fn main() { println!(\"hello\"); }\n").unwrap();
    let cargo = || run_argv(directory.path(), layers.path(), &["cargo", "build", "--offline"]);
    let first = cargo();
    if first.stderr.text().contains("rustup could not") {
        println!("SKIP {NAME}: rustup has no toolchain for this user");
        return;
    }
    assert!(first.stderr.text().contains("Compiling hello"), "{:?} {}", first.verdict, first.stderr.text());
    let built = fs::metadata(at("target/debug/hello")).unwrap();
    assert_eq!(built.mode() & 0o111, 0o111, "x bits stay");
    drop(first);
    let second = cargo();
    assert!(second.stderr.text().contains("Finished"), "{}", second.stderr.text());
    assert!(!second.stderr.text().contains("Compiling"), "times stay: {}", second.stderr.text());
    #[expect(clippy::disallowed_methods, reason = "the host's side of the build")]
    let output = Command::new(at("target/debug/hello")).output().unwrap();
    assert_eq!(output.stdout, b"hello\n");
}

#[test]
fn npm_installs_a_package_with_editor_settings() {
    const NAME: &str = "npm_installs_a_package_with_editor_settings";
    if skip_without_namespaces(NAME) {
        return;
    }
    if !is_installed("npm") {
        println!("SKIP {NAME}: npm is not installed");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir_all(at("package/.vscode")).unwrap();
    fs::write(at("package/package.json"), "{\"name\":\"dependency\",\"version\":\"1.0.0\"}").unwrap();
    fs::write(at("package/index.js"), "module.exports = 7").unwrap();
    fs::write(at("package/.vscode/tasks.json"), "{}").unwrap();
    fs::write(at("package.json"), "{\"name\":\"own\",\"version\":\"1.0.0\"}").unwrap();
    let outcome = run(
        directory.path(),
        "tar czf dependency.tgz package && npm install --offline --no-audit --no-fund ./dependency.tgz",
    );
    assert_eq!(fs::read_to_string(at("node_modules/dependency/index.js")).unwrap(), "module.exports = 7");
    assert!(fs::read_to_string(at("package.json")).unwrap().contains("dependency"));
    assert!(!at("node_modules/dependency/.vscode").exists());
    assert_eq!(denied(&outcome), ["node_modules/dependency/.vscode"]);
}

#[test]
fn a_database_of_the_host_is_appended_to() {
    if skip_without_namespaces("a_database_of_the_host_is_appended_to") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let fill = "import sqlite3
db = sqlite3.connect('data.db')
db.execute('create table if not exists t (x)')
db.executemany('insert into t values (zeroblob(65536))', [()] * 128)
db.commit()
print(db.execute('select count(*) from t').fetchone()[0])";
    for count in [128, 256] {
        let outcome = run(directory.path(), &format!("python3 -c \"{fill}\""));
        assert_eq!(outcome.stdout.text(), format!("{count}\n"));
        let names: Vec<_> = fs::read_dir(directory.path()).unwrap().flatten().collect();
        assert_eq!(names.len(), 1, "no journal is left: {names:?}");
        let size = names[0].metadata().unwrap().len();
        assert!(size > count * 65536 && size < count * 65536 + (1 << 20), "{size}");
    }
}

#[test]
fn a_tree_of_many_files_is_applied() {
    if skip_without_namespaces("a_tree_of_many_files_is_applied") {
        return;
    }
    // As many as in a large `node_modules`, and long enough for the host to count them.
    let code = "import os, time\nfor d in range(30):\n    os.mkdir(f'd{d}')\n    for f in range(1000):\n        open(f'd{d}/f{f}', 'w')\ntime.sleep(0.6)";
    let directory = tempfile::tempdir().unwrap();
    run(directory.path(), &format!("python3 -c \"{code}\""));
    assert_eq!(fs::read_dir(directory.path().join("d29")).unwrap().count(), 1000);
    let limits = Limits::default().with_wall(Duration::from_secs(100)).with_layer_inodes(29_000);
    let sandbox = Sandbox::new().workspace(Workspace::Host(tempfile::tempdir().unwrap().keep()));
    let program = Program::argv(["python3", "-c", code]);
    let outcome = sandbox.limits(limits).run(&program, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(outcome.verdict, Verdict::Inodes { limit: 29_000 });
}

#[test]
fn a_tree_is_deleted_while_the_host_counts_it() {
    if skip_without_namespaces("a_tree_is_deleted_while_the_host_counts_it") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for number in 0..3000 {
        fs::create_dir_all(directory.path().join(format!("build/{number}/deep"))).unwrap();
    }
    // The layer first has a copy of each directory, and finally a whiteout of each.
    let code = "import os, shutil, time\nfor d in range(3000): open(f'build/{d}/deep/x', 'w')\nfor d in range(3000):\n    \
                shutil.rmtree(f'build/{d}')\n    if d % 30 == 0: time.sleep(0.01)";
    run(directory.path(), &format!("python3 -c \"{code}\""));
    assert_eq!(fs::read_dir(directory.path().join("build")).unwrap().count(), 0);
}

#[test]
fn a_directory_is_renamed_by_copying() {
    if skip_without_namespaces("a_directory_is_renamed_by_copying") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir_all(at("one/inner")).unwrap();
    fs::write(at("one/inner/file"), "x").unwrap();
    let rename = "import os\ntry: os.rename('one', 'other')\nexcept OSError as e: print(e.errno)";
    let outcome = run(directory.path(), &format!("python3 -c \"{rename}\"; mv one two"));
    assert_eq!(outcome.stdout.text(), "18\n", "EXDEV, as between file systems");
    assert!(!at("one").exists());
    assert_eq!(fs::read_to_string(at("two/inner/file")).unwrap(), "x");
    // A directory that the code created is renamed as usual.
    run(
        directory.path(),
        "mkdir new && echo y > new/f && python3 -c \"import os; os.rename('new', 'made')\"",
    );
    assert_eq!(fs::read_to_string(at("made/f")).unwrap(), "y\n");
}

#[test]
fn hard_links_among_new_files_stay_links() {
    if skip_without_namespaces("hard_links_among_new_files_stay_links") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("existing"), "x").unwrap();
    fs::hard_link(at("existing"), at("second")).unwrap();
    run(directory.path(), "echo a > new; ln new link; ln existing third; echo b >> existing");
    assert_eq!(fs::metadata(at("new")).unwrap().ino(), fs::metadata(at("link")).unwrap().ino());
    assert_eq!(fs::read_to_string(at("existing")).unwrap(), "xb\n");
    assert_eq!(fs::read_to_string(at("third")).unwrap(), "xb\n");
    // The other name of the host's file keeps the host's version: the changed one is a copy.
    assert_eq!(fs::read_to_string(at("second")).unwrap(), "x");
}

#[test]
fn a_program_watches_its_own_changes() {
    if skip_without_namespaces("a_program_watches_its_own_changes") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("src")).unwrap();
    fs::write(directory.path().join("src/file"), "x").unwrap();
    let code = "import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(0)
assert watch >= 0, os.strerror(ctypes.get_errno())
assert libc.inotify_add_watch(watch, b'src', 0x100 | 0x2) >= 0
open('src/file', 'a').write('y')
open('src/new', 'w')
found = os.read(watch, 4096)
print(b'file' in found, b'new' in found)";
    let outcome = run(directory.path(), &format!("python3 -c \"{code}\""));
    assert_eq!(outcome.stdout.text(), "True True\n");
}

#[test]
fn sparse_files_stay_sparse() {
    if skip_without_namespaces("sparse_files_stay_sparse") {
        return;
    }
    let begin = std::time::Instant::now();
    let is_sparse = |path: PathBuf| {
        let metadata = fs::metadata(path).unwrap();
        assert_eq!(metadata.len(), (64 << 30) + 3);
        assert!(metadata.blocks() * 512 < 1 << 20, "{} blocks", metadata.blocks());
    };
    // A finished run moves its files.
    let directory = tempfile::tempdir().unwrap();
    run(directory.path(), "truncate -s 64G big && printf end >> big");
    is_sparse(directory.path().join("big"));
    // A session copies them, and copies changes of the host.
    let (directory, layers) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let limits = Limits::default().with_file_size(1 << 40);
    let sandbox =
        Sandbox::new().workspace(Workspace::Host(directory.path().to_owned())).layers(layers.path());
    let session = Session::start(&sandbox.limits(limits), Language::Python).unwrap();
    let cell = |code: &str| {
        let outcome = session.run(code, &CellLimits::default(), &Cancel::new(), &mut |_| {}).unwrap();
        assert_eq!(outcome.verdict, Verdict::Ok, "{code}: {}", outcome.stderr.text());
        outcome.value
    };
    cell("big = open('big', 'wb')\nbig.truncate(64 << 30)\nbig.seek(0, 2)\nbig.write(b'end')\nbig.close()");
    is_sparse(directory.path().join("big"));
    let other = fs::File::create(directory.path().join("other")).unwrap();
    other.set_len(64 << 30).unwrap();
    let seen = cell("import os\n[os.stat('other').st_size >> 30, os.stat('other').st_blocks < 2048]");
    assert_eq!(seen, Some(serde_json::json!([64, true])));
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
}

#[test]
fn extreme_depth_is_bounded_and_removed() {
    if skip_without_namespaces("extreme_depth_is_bounded_and_removed") {
        return;
    }
    let code = "import os\nopen('notes', 'w').write('ok')\nfor _ in range(5000):\n    os.mkdir('d')\n    os.chdir('d')\nopen('end', 'w')";
    for hold in [false, true] {
        let (directory, layers) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut sandbox =
            Sandbox::new().workspace(Workspace::Host(directory.path().to_owned())).layers(layers.path());
        if hold {
            sandbox = sandbox.apply(toolpost_sandbox::ApplyMode::Hold);
        }
        let program = Program::argv(["python3", "-c", code]);
        let outcome = sandbox.run(&program, &Cancel::new(), &mut |_| {}).unwrap();
        assert_eq!(outcome.verdict, Verdict::Ok, "{}", outcome.stderr.text());
        let id = outcome.applied.as_ref().unwrap().id.clone();
        let is_said = denied(&outcome).contains(&"…".to_owned());
        drop(outcome);
        if hold {
            HeldRun::find(&id, Some(layers.path())).unwrap().discard();
        } else {
            assert!(is_said, "what is too deep is reported");
            assert_eq!(fs::read_to_string(directory.path().join("notes")).unwrap(), "ok");
            if let Ok(run) = HeldRun::find(&id, Some(layers.path())) {
                run.discard();
            }
        }
        let is_layer = |entry: &std::io::Result<fs::DirEntry>| entry.as_ref().unwrap().path().is_dir();
        let left = fs::read_dir(layers.path()).map_or(0, |entries| entries.filter(is_layer).count());
        assert_eq!(left, 0, "hold: {hold}");
    }
}

#[test]
fn apply_does_not_follow_a_parent_that_is_swapped_for_a_link() {
    if skip_without_namespaces("apply_does_not_follow_a_parent_that_is_swapped_for_a_link") {
        return;
    }
    let (directory, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(directory.path().join("d")).unwrap();
    fs::write(directory.path().join("d/old"), "x").unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (real, moved) = (directory.path().join("d"), directory.path().join("moved"));
            while !is_over.load(Ordering::Relaxed) {
                fs::rename(&real, &moved).unwrap();
                symlink(outside.path(), &real).unwrap();
                std::thread::yield_now();
                // Apply may have put its own directory there.
                let _ = fs::remove_file(&real);
                if fs::rename(&moved, &real).is_err() {
                    break;
                }
            }
        });
        let layers = tempfile::tempdir().unwrap();
        let outcome = run_in(
            directory.path(),
            layers.path(),
            "for i in $(seq 3000); do echo x > d/f$i 2> /dev/null; done; rm -f d/old; true",
        );
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(outcome.verdict, Verdict::Ok);
    });
    let names: Vec<PathBuf> =
        fs::read_dir(outside.path()).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(names.is_empty(), "{names:?}");
}

#[test]
fn existing_modes_stay() {
    if skip_without_namespaces("existing_modes_stay") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for (name, mode) in [("script", 0o755), ("private", 0o600), ("plain", 0o644)] {
        fs::write(directory.path().join(name), "x").unwrap();
        fs::set_permissions(directory.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    run(directory.path(), "for f in script private plain; do echo y >> $f; done");
    for (name, mode) in [("script", 0o755), ("private", 0o600), ("plain", 0o644)] {
        let metadata = fs::metadata(directory.path().join(name)).unwrap();
        assert_eq!(metadata.mode() & 0o7777, mode, "{name}");
        assert_eq!(metadata.len(), 3, "{name}");
    }
}
