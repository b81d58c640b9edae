//! The Python package: its wheel is built, installed and tested.

use std::path::Path;

use super::report::Tally;
use crate::Result;
use crate::command::Task;

const PYTHON: &str = ".dev/python-env/bin/python3";
const WHEELS: &str = ".dev/python-wheels";

/// Builds the wheel without optimization, installs it, and runs its tests and type checks.
pub fn run(root: &Path, logs: &Path, tally: &mut Tally) -> Result<()> {
    if !root.join(PYTHON).exists() {
        tally.skip("python package", "its environment could not be made");
        return Ok(());
    }
    // Each wheel has the name of its version, so that an old one is replaced.
    let build = "-m maturin build --quiet --profile dev --compatibility linux --auditwheel skip --out";
    let mut build: Vec<&str> = build.split(' ').collect();
    build.extend([WHEELS, "--manifest-path", "crates/python/Cargo.toml"]);
    let install = "-m pip install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall";
    let mut install: Vec<&str> = install.split(' ').collect();
    install.extend(["--find-links", WHEELS, "toolpost"]);
    for (name, arguments) in [("build the wheel", build), ("install the wheel", install)] {
        if !passes(root, name, &arguments, tally)? {
            return Ok(());
        }
    }
    tests(root, logs, tally)?;
    passes(root, "mypy", &["-m", "mypy", "--config-file", "crates/python/pyproject.toml"], tally)?;
    Ok(())
}

fn passes(root: &Path, name: &str, arguments: &[&str], tally: &mut Tally) -> Result<bool> {
    let good = Task::new(PYTHON, arguments).folder(root).show()?;
    if good {
        tally.passed += 1;
    } else {
        tally.failed.push(format!("python package: {name}"));
    }
    Ok(good)
}

fn tests(root: &Path, logs: &Path, tally: &mut Tally) -> Result<()> {
    let report = logs.join("python.xml");
    let option = format!("--junitxml={}", report.display());
    let arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "crates/python", &option];
    let binary = root.join("target/debug/toolpost");
    let task =
        Task::new(PYTHON, &arguments).folder(root).variable("TOOLPOST_BIN", &binary.display().to_string());
    let good = task.show()?;
    let mut run = Tally::default();
    if let Ok(xml) = std::fs::read_to_string(&report) {
        run.add_junit(&xml);
    }
    tally.add_run("python package", run, good);
    Ok(())
}
