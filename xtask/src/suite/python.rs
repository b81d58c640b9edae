//! The Python package: its wheel is built, installed and tested.

use std::env::{self, consts};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::report::Tally;
use super::setup;
use crate::Result;
use crate::command::Task;
use crate::workspace::Workspace;

const PYTHON: &str = ".dev/python-env/bin/python3";

/// The oldest C library that the wheel for users runs with: that of Debian 10 and RHEL 8.
const GLIBC: &str = "2.28";

/// Where Maturin finds files that it installs beside the package.
const DATA: &str = "crates/python/toolpost._engine.data";

/// Builds the wheel in a profile of Cargo into a directory below `.dev/python-wheels`, installs it in the environment of
/// an interpreter, and returns its path.
pub fn install(root: &Path, python: &str, profile: &str, directory: &str) -> Result<PathBuf> {
    let wheel = build_wheel(root, python, profile, directory)?;
    install_wheel(root, python, &wheel)?;
    Ok(wheel)
}

/// Builds the wheel in a profile of Cargo into a directory below `.dev/python-wheels`, and returns its path.
pub fn build_wheel(root: &Path, python: &str, profile: &str, directory: &str) -> Result<PathBuf> {
    let maturin =
        Task::new(python, &["-m", "maturin", "build", "--auditwheel=skip", "--compatibility=linux"]);
    build(root, &maturin, profile, directory)
}

fn install_wheel(root: &Path, python: &str, wheel: &Path) -> Result<()> {
    let install =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"];
    // The wheel of another commit has the same version.
    let task = Task::new(python, &install).argument("--force-reinstall").argument(&wheel.to_string_lossy());
    passes(&task.folder(root))
}

/// Builds the wheel for users: optimized, with the command `toolpost`, for every Linux with glibc 2.28. It is in
/// `.dev/python-wheels/release`, and tested on a machine without compilers.
pub fn wheel(root: &Path) -> Result<bool> {
    setup::provide(root, &[setup::PYTHON_PACKAGE, setup::ZIG]);
    let target = format!("{}-unknown-linux-gnu", consts::ARCH);
    let bin = root.join(PYTHON).with_file_name("");
    // Cargo-zigbuild and Maturin look for Zig on the search path.
    let path = format!("{}:{}", bin.display(), env::var("PATH").unwrap_or_default());
    let zigbuild = bin.join("cargo-zigbuild").display().to_string();
    let command = Task::new(&zigbuild, &["zigbuild", "--release", "--target", &format!("{target}.{GLIBC}")])
        .argument("--package=toolpost-cli")
        .argument("--bin=toolpost");
    passes(&command.folder(root).variable("PATH", &path))?;
    let program = Workspace::read(root)?.target.join(target).join("release/toolpost");
    let scripts = root.join(DATA).join("scripts");
    let copied =
        fs::create_dir_all(&scripts).and_then(|()| fs::copy(&program, scripts.join("toolpost")).map(drop));
    copied.map_err(|error| format!("cannot copy {} to {}: {error}", program.display(), scripts.display()))?;
    let python = root.join(PYTHON).display().to_string();
    let maturin = Task::new(&python, &["-m", "maturin", "build", "--zig", "--auditwheel=check"])
        .argument(&format!("--compatibility=manylinux_{}", GLIBC.replace('.', "_")))
        .variable("PATH", &path);
    let built = build(root, &maturin, "release", "release");
    // Another build would install an old command.
    fs::remove_dir_all(root.join(DATA)).map_err(|error| format!("cannot remove {DATA}: {error}"))?;
    let wheel = built?;
    eprintln!("{}", wheel.display());
    let tests = ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "crates/python/tests/test_wheel.py"];
    Task::new(&python, &tests).folder(root).variable("TOOLPOST_WHEEL", &wheel.to_string_lossy()).show()
}

fn build(root: &Path, maturin: &Task, profile: &str, directory: &str) -> Result<PathBuf> {
    let wheels = root.join(".dev/python-wheels").join(directory);
    // Wheels of other platforms and versions have other names.
    if wheels.exists() {
        fs::remove_dir_all(&wheels)
            .map_err(|error| format!("cannot remove {}: {error}", wheels.display()))?;
    }
    let mut maturin = maturin.clone().folder(root);
    let place = ["--profile", profile, "--out", &wheels.to_string_lossy()];
    for argument in ["--quiet", "--manifest-path", "crates/python/Cargo.toml"].into_iter().chain(place) {
        maturin = maturin.argument(argument);
    }
    passes(&maturin)?;
    let files =
        fs::read_dir(&wheels).map_err(|error| format!("cannot list {}: {error}", wheels.display()))?;
    let mut files = files.filter_map(|entry| Some(entry.ok()?.path()));
    files.next().ok_or_else(|| format!("there is no wheel in {}", wheels.display()))
}

fn passes(task: &Task) -> Result<()> {
    if task.clone().limit(Duration::from_mins(40)).show()? {
        return Ok(());
    }
    Err(format!("`{}` failed", task.line()))
}

/// Installs the package without optimization, and runs its type checks and its tests, those with every supported
/// interpreter.
pub fn run(workspace: &Workspace, logs: &Path, tally: &mut Tally) -> Result<()> {
    let root = &workspace.root;
    let python = root.join(PYTHON).display().to_string();
    if !root.join(PYTHON).exists() {
        tally.skip("python package", "its environment could not be made");
        return Ok(());
    }
    let wheel = install(root, &python, "dev", "dev")?;
    let types =
        Task::new(&python, &["-m", "mypy", "--config-file", "crates/python/pyproject.toml"]).folder(root);
    if types.show()? {
        tally.passed += 1;
    } else {
        tally.failed.push("python package: mypy".to_owned());
    }
    let command = workspace.target.join("debug/toolpost");
    let tests = |python: &str, name: &str, options: &[&str], tally: &mut Tally| -> Result<()> {
        let report = logs.join(format!("{}.xml", name.replace(' ', "-")));
        let tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "crates/python/tests"];
        let good = Task::new(python, &[&tests, options].concat())
            .argument(&format!("--junitxml={}", report.display()))
            .folder(root)
            .variable("TOOLPOST_BIN", &command.to_string_lossy())
            .variable("TOOLPOST_WHEEL", &wheel.to_string_lossy())
            .show()?;
        let mut run = Tally::default();
        if let Ok(xml) = fs::read_to_string(&report) {
            run.add_junit(&xml);
        }
        for failed in &mut run.failed {
            failed.insert_str(0, &format!("{name}: "));
        }
        tally.add_run(name, run, good);
        Ok(())
    };
    tests(&python, "python package", &[], tally)?;
    for (version, interpreter) in setup::INTERPRETERS {
        let name = format!("python package with CPython {version}");
        let interpreter = root.join(interpreter);
        if !interpreter.exists() {
            tally.skip(&name, "that interpreter is not installed");
            continue;
        }
        let python = interpreter.display().to_string();
        install_wheel(root, &python, &wheel)?;
        // The type checkers and the wheel are the same; the others use what the first run has shown.
        let same = ["types", "wheel", "compat_*", "examples", "notebook", "option*"];
        let options = same.map(|file| format!("--ignore-glob=*/test_{file}.py"));
        tests(&python, &name, &options.each_ref().map(String::as_str), tally)?;
    }
    Ok(())
}
