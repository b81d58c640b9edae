//! New projects pass their own tests, offline.
#![expect(clippy::disallowed_methods, reason = "a new project is tested by running its own test")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use toolpost_core::Code;
use toolpost_exec::scaffold::{Dependency, ProjectKind, scaffold};

fn run(directory: &Path, line: &[String]) -> Output {
    Command::new(&line[0]).args(&line[1..]).current_dir(directory).output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(ToOwned::to_owned).collect()
}

#[test]
fn an_executable_passes_its_own_test() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("deep/my-tools");
    let project = scaffold(&ProjectKind::Executable, "my-tools", &directory).unwrap();
    assert_eq!(project.files, ["my-tools", "test_my-tools.py", "toolpost_author.py"].map(PathBuf::from));
    let program = std::fs::read_to_string(directory.join("my-tools")).unwrap();
    assert!(program.lines().count() <= 12, "{program}");
    let mode = std::fs::metadata(directory.join("my-tools")).unwrap().permissions().mode();
    assert_eq!(mode & 0o100, 0o100, "it can be started");
    let tried = run(&directory, &project.try_it);
    assert_eq!(text(&tried), "{\"status\":\"success\",\"result\":{\"result\":\"Hello, Ada.\"}}\n");
    let tested = run(&directory, &project.test);
    assert!(tested.status.success() && text(&tested).contains("OK"), "{}", text(&tested));
    // The test tests: a program that does something else fails it.
    std::fs::write(directory.join("my-tools"), program.replace("Hello, ", "Bye, ")).unwrap();
    assert!(!run(&directory, &project.test).status.success());
}

/// The project in Rust with the façade of this workspace, and the versions that it is tested with.
#[test]
fn a_rust_project_passes_its_own_test() {
    let place = tempfile::tempdir().unwrap();
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let directory = place.path().join("greeter");
    let kind = ProjectKind::Rust(Dependency::Path(workspace.join("crates/toolpost")));
    let project = scaffold(&kind, "greeter", &directory).unwrap();
    assert_eq!(project.files.len(), 4);
    assert_eq!((project.test, project.try_it), (words("cargo test"), words("cargo run -- greet --name Ada")));
    std::fs::copy(workspace.join("Cargo.lock"), directory.join("Cargo.lock")).unwrap();
    // The workspace's own, with its profile, so that what is built there already is not built again.
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("..");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--offline", "--quiet", "--config", "profile.dev.debug='line-tables-only'"]);
    cargo.args(["--config", "profile.dev.package.'*'.debug=false", "--target-dir"]).arg(target);
    cargo.current_dir(&directory);
    let tested = cargo.output().unwrap();
    assert!(tested.status.success(), "{}", text(&tested));
    assert!(text(&tested).contains("3 passed") && !text(&tested).contains("warning"), "{}", text(&tested));
}

#[test]
fn the_generated_dependency_follows_the_setting() {
    let place = tempfile::tempdir().unwrap();
    let manifest = |name: &str, dependency: Dependency| {
        let directory = place.path().join(name);
        scaffold(&ProjectKind::Rust(dependency), name, &directory).unwrap();
        let text = std::fs::read_to_string(directory.join("Cargo.toml")).unwrap();
        let manifest: serde_json::Value = toml::from_str(&text).unwrap();
        assert_eq!(manifest["package"]["name"], name);
        manifest["dependencies"]["toolpost"].clone()
    };
    assert_eq!(manifest("one", Dependency::Version("0.1.0".into())), "0.1.0");
    let path = "/a \"b\"\\c/toolpost";
    assert_eq!(manifest("two", Dependency::Path(path.into()))["path"], path);
}

#[test]
fn existing_files_are_not_overwritten() {
    let place = tempfile::tempdir().unwrap();
    let full = place.path().join("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("mine"), "mine").unwrap();
    let error = scaffold(&ProjectKind::Executable, "mine", &full).unwrap_err();
    assert_eq!(error.code(), Code::Conflict, "{error}");
    assert_eq!(std::fs::read(full.join("mine")).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(&full).unwrap().count(), 1);
    let error = scaffold(&ProjectKind::Executable, "x", &full.join("mine")).unwrap_err();
    assert!(matches!(error.code(), Code::Conflict | Code::InvalidPath), "{error}");
    let error = scaffold(&ProjectKind::Executable, "x", &full.join("mine/deeper")).unwrap_err();
    assert_eq!(error.code(), Code::InvalidPath, "{error}");

    let rust = ProjectKind::Rust(Dependency::Version("1".into()));
    let free = place.path().join("free");
    for name in ["", "1a", "../x", "a/b", "A", "a b", "é", "-a", "a\0", &"a".repeat(65)] {
        for kind in [&ProjectKind::Executable, &rust] {
            assert_eq!(scaffold(kind, name, &free).unwrap_err().code(), Code::InvalidInput, "{name:?}");
        }
    }
    assert_eq!(scaffold(&rust, "test", &free).unwrap_err().code(), Code::InvalidInput);
    assert!(!free.exists());
    scaffold(&ProjectKind::Executable, "test", &free).unwrap();
}
