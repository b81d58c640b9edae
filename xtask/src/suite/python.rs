//! The Python package: its wheel is built, installed and tested.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::report::Tally;
use super::setup;
use crate::Result;
use crate::command::Task;

const PYTHON: &str = ".dev/python-env/bin/python3";

/// Builds the wheel in a profile of Cargo into a directory below `.dev/python-wheels`, and installs it in the environment
/// of an interpreter.
pub fn install(root: &Path, python: &str, profile: &str, directory: &str) -> Result<()> {
    let wheels = build(root, python, profile, directory)?;
    let install =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"];
    // The wheel of another commit has the same version.
    let source = ["--force-reinstall", "--find-links", &wheels, "toolpost"];
    passes(&Task::new(python, &[install.as_slice(), &source].concat()).folder(root))
}

/// Builds the wheel for users: optimized, with the command `toolpost`. It is in `.dev/python-wheels/release`.
pub fn wheel(root: &Path) -> Result<bool> {
    setup::provide(root, &[setup::PYTHON_PACKAGE]);
    let command =
        Task::new("cargo", &["build", "--release", "--package", "toolpost-cli", "--bin", "toolpost"]);
    if !command.folder(root).limit(Duration::from_mins(40)).show()? {
        return Ok(false);
    }
    // Maturin installs what is in this directory beside the package.
    let scripts = root.join("crates/python/toolpost._engine.data/scripts");
    let copied = fs::create_dir_all(&scripts)
        .and_then(|()| fs::copy(root.join("target/release/toolpost"), scripts.join("toolpost")));
    copied.map_err(|error| format!("cannot copy the command to {}: {error}", scripts.display()))?;
    build(root, &root.join(PYTHON).display().to_string(), "release", "release")?;
    Ok(true)
}

fn build(root: &Path, python: &str, profile: &str, directory: &str) -> Result<String> {
    let wheels = format!(".dev/python-wheels/{directory}");
    let build = ["-m", "maturin", "build", "--quiet", "--auditwheel", "skip", "--compatibility", "linux"];
    let place = ["--profile", profile, "--out", &wheels, "--manifest-path", "crates/python/Cargo.toml"];
    passes(&Task::new(python, &[build.as_slice(), &place].concat()).folder(root))?;
    Ok(wheels)
}

fn passes(task: &Task) -> Result<()> {
    if task.clone().limit(Duration::from_mins(40)).show()? {
        return Ok(());
    }
    Err(format!("`{}` failed", task.line()))
}

/// Installs the package without optimization, and runs its tests and type checks.
pub fn run(root: &Path, logs: &Path, tally: &mut Tally) -> Result<()> {
    let python = root.join(PYTHON).display().to_string();
    if !root.join(PYTHON).exists() {
        tally.skip("python package", "its environment could not be made");
        return Ok(());
    }
    install(root, &python, "dev", "dev")?;
    tests(root, &python, logs, tally)?;
    let types =
        Task::new(&python, &["-m", "mypy", "--config-file", "crates/python/pyproject.toml"]).folder(root);
    if types.show()? {
        tally.passed += 1;
    } else {
        tally.failed.push("python package: mypy".to_owned());
    }
    Ok(())
}

fn tests(root: &Path, python: &str, logs: &Path, tally: &mut Tally) -> Result<()> {
    let report = logs.join("python.xml");
    let option = format!("--junitxml={}", report.display());
    let arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "crates/python/tests", &option];
    let binary = root.join("target/debug/toolpost");
    let task =
        Task::new(python, &arguments).folder(root).variable("TOOLPOST_BIN", &binary.display().to_string());
    let good = task.show()?;
    let mut run = Tally::default();
    if let Ok(xml) = fs::read_to_string(&report) {
        run.add_junit(&xml);
    }
    tally.add_run("python package", run, good);
    Ok(())
}
