//! The Python package: its wheel is built, installed and tested.

use std::env::{self, consts};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::report::Tally;
use super::setup;
use crate::Result;
use crate::command::Task;
use crate::dist;
use crate::workspace::Workspace;

const PYTHON: &str = ".dev/python-env/bin/python3";

/// A system that a wheel for users is for.
struct Platform {
    /// As the compiler names it.
    target: &'static str,
    /// The tag that the wheel claims.
    tag: &'static str,
}

/// Debian 10, RHEL 8 and newer have glibc 2.28. Alpine 3.13 and newer have musl 1.2.
const PLATFORMS: [Platform; 4] = [
    Platform { target: "x86_64-unknown-linux-gnu", tag: "manylinux_2_28" },
    Platform { target: "aarch64-unknown-linux-gnu", tag: "manylinux_2_28" },
    Platform { target: "x86_64-unknown-linux-musl", tag: "musllinux_1_2" },
    Platform { target: "aarch64-unknown-linux-musl", tag: "musllinux_1_2" },
];

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
    passes(&task.directory(root))
}

/// Installs the wheel of this machine for users, without the command, in the environment of an interpreter.
pub fn install_optimized(root: &Path, python: &str) -> Result<()> {
    setup::provide(root, &[setup::PYTHON_PACKAGE, setup::ZIG]);
    let own = format!("{}-unknown-linux-gnu", consts::ARCH);
    let platform = PLATFORMS.iter().find(|platform| platform.target == own);
    let platform = platform.ok_or_else(|| format!("there is no wheel for {own}"))?;
    install_wheel(root, python, &Zig::new(root).wheel(platform, "bench")?)
}

/// Builds the wheels for users, or those whose targets have one of the words: optimized, with the command `toolpost`.
/// They are in `.dev/python-wheels/release`, where pip finds that of a system. That of this machine is tested on a machine
/// without compilers, the others by their content.
pub fn wheels(root: &Path, words: &[String]) -> Result<bool> {
    let wanted =
        |platform: &&Platform| words.is_empty() || words.iter().any(|word| platform.target.contains(word));
    let platforms: Vec<&Platform> = PLATFORMS.iter().filter(wanted).collect();
    if platforms.is_empty() {
        let targets = PLATFORMS.map(|platform| platform.target).join(", ");
        return Err(format!("no target has one of these words; the targets are {targets}"));
    }
    setup::provide(root, &[setup::PYTHON_PACKAGE, setup::ZIG]);
    let zig = Zig::new(root);
    let wheels = root.join(".dev/python-wheels/release");
    fs::create_dir_all(&wheels).map_err(|error| format!("cannot make {}: {error}", wheels.display()))?;
    let mut is_good = true;
    for platform in platforms {
        let data = root.join(DATA);
        let built = zig.command(platform).and_then(|program| {
            let scripts = data.join("scripts");
            fs::create_dir_all(&scripts)
                .and_then(|()| fs::copy(&program, scripts.join("toolpost")))
                .map_err(|error| {
                    format!("cannot copy {} to {}: {error}", program.display(), scripts.display())
                })?;
            zig.wheel(platform, platform.target)
        });
        // Another build would install an old command.
        if data.exists() {
            fs::remove_dir_all(&data).map_err(|error| format!("cannot remove {DATA}: {error}"))?;
        }
        let built = built?;
        let wheel = wheels.join(built.file_name().unwrap_or_default());
        fs::rename(&built, &wheel).map_err(|error| format!("cannot move {}: {error}", built.display()))?;
        eprintln!("{}", wheel.display());
        let tests =
            ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "crates/python/tests/test_wheel.py"];
        let tests = Task::new(&root.join(PYTHON).to_string_lossy(), &tests).directory(root);
        is_good &= tests.variable("TOOLPOST_WHEEL", &wheel.to_string_lossy()).show()?;
    }
    Ok(is_good)
}

/// Builds for other systems and older ones.
struct Zig<'a> {
    root: &'a Path,
    /// Cargo-zigbuild and Maturin look for Zig on the search path.
    path: String,
}

impl<'a> Zig<'a> {
    fn new(root: &'a Path) -> Self {
        let bin = root.join(PYTHON).with_file_name("");
        let path = format!("{}:{}", bin.display(), env::var("PATH").unwrap_or_default());
        Self { root, path }
    }

    /// Builds the command: the static program of a release, for both C libraries of an architecture.
    fn command(&self, platform: &Platform) -> Result<PathBuf> {
        let own = dist::TARGETS.into_iter().find(|target| platform.target.starts_with(target.arch));
        let target = own.ok_or_else(|| format!("no release is for {}", platform.target))?;
        passes(&Task::new("rustup", &["target", "add", &target.triple()]))?;
        dist::build::binary(&Workspace::read(self.root)?, target)
    }

    /// Builds a wheel into a directory below `.dev/python-wheels`.
    fn wheel(&self, platform: &Platform, directory: &str) -> Result<PathBuf> {
        let Platform { target, tag } = platform;
        passes(&Task::new("rustup", &["target", "add", target]))?;
        let python = self.root.join(PYTHON).display().to_string();
        let maturin = Task::new(&python, &["-m", "maturin", "build", "--zig", "--auditwheel=check"])
            .argument(&format!("--target={target}"))
            .argument(&format!("--compatibility={tag}"))
            .variable("PATH", &self.path);
        build(self.root, &maturin, "release", directory)
    }
}

fn build(root: &Path, maturin: &Task, profile: &str, directory: &str) -> Result<PathBuf> {
    let wheels = root.join(".dev/python-wheels").join(directory);
    // Wheels of other platforms and versions have other names.
    if wheels.exists() {
        fs::remove_dir_all(&wheels)
            .map_err(|error| format!("cannot remove {}: {error}", wheels.display()))?;
    }
    let mut maturin = maturin.clone().directory(root);
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
        Task::new(&python, &["-m", "mypy", "--config-file", "crates/python/pyproject.toml"]).directory(root);
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
            .directory(root)
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
