//! The steps of `cargo xtask test`, one after another; a failed one skips no other.

pub mod changed;
pub mod containers;
pub mod examples;
pub mod installs;
pub mod pages;
pub mod python;
pub mod report;
pub mod setup;
pub mod typescript;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::command::Task;
use crate::dist::build;
use crate::site;
use crate::workspace::{Workspace, has_extension};
use changed::Selection;
use report::Tally;
use setup::Tools;

/// Sets up what is needed, runs the steps on the checkout at `root`, and prints the result; its last line is
/// `N passed, M failed, K skipped`.
///
/// With `--changed [COMMIT]` the steps cover the packages that the changes since the commit reach
/// ([`Selection::since`]). The answer is whether nothing failed. Fails if the checkout cannot be read, if `.dev` cannot
/// be written, or for other arguments.
pub fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let begin = Instant::now();
    let workspace = Workspace::read(root)?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let selection = match *arguments.as_slice() {
        [] => Selection::All,
        ["--changed"] => Selection::since(&workspace, None)?,
        ["--changed", commit] if !commit.starts_with('-') => Selection::since(&workspace, Some(commit))?,
        _ => return Err("`test` takes nothing or `--changed [COMMIT]`".to_owned()),
    };
    if let Selection::Packages(packages) = &selection {
        eprintln!(
            "the change reaches {}",
            packages.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
        );
    }
    setup::provide(root, setup::TOOLCHAIN);
    // Downloads wait for the network, compilers for the processor: the tests' own needs come in beside the lints.
    let tally = thread::scope(|scope| {
        let prepared = scope.spawn(|| {
            let tools = setup::prepare(root);
            step("set-up", begin, "done");
            tools
        });
        steps(&workspace, &selection, || prepared.join().map_err(|_| "the set-up panicked".into()))
    })?;
    eprintln!("{:.0} s in all", begin.elapsed().as_secs_f64());
    print!("{tally}");
    Ok(tally.failed.is_empty())
}

/// The features that are on where a step does not say otherwise: all, and the same ones, so that nothing is built twice.
pub(crate) const FEATURES: &str = "toolpost/full";

/// Builds the command as the tests do. The example is there for its dependencies: with them, the features of shared
/// packages are those of the tests, and nothing is built twice.
pub(crate) const BUILD_PROGRAM: &[&str] = &[
    "cargo",
    "build",
    "--quiet",
    "--workspace",
    "--exclude",
    "toolpost-python",
    "--bin",
    "toolpost",
    "--example",
    "pool_cost",
];

/// Runs the steps on the packages of `selection`, with a line for each on standard error. What the tests need is asked
/// for when they begin.
pub fn steps(
    workspace: &Workspace,
    selection: &Selection,
    tools: impl FnOnce() -> Result<Tools>,
) -> Result<Tally> {
    let root = &workspace.root;
    // A tree without the façade has none of its features.
    let has_facade = workspace.packages.iter().any(|package| package.name == "toolpost");
    let features: &'static [&'static str] =
        if has_facade && selection.has("toolpost") { &["--features", FEATURES] } else { &[] };
    let suite = Suite { workspace, selection, logs: logs(root)?, features };
    let mut tally = Tally::default();
    suite.status(&mut tally, "format", &["fmt", "--all", "--check"], &[]);
    suite.status(
        &mut tally,
        "clippy",
        &[
            &["clippy"],
            &*selection.options(),
            features,
            &["--all-targets", "--keep-going", "--", "-D", "warnings"],
        ]
        .concat(),
        &[],
    );
    let has_cluster = workspace.packages.iter().any(|package| package.name == "toolpost-flow-restate");
    let clusters = has_cluster && selection.has("toolpost-cli");
    // No other step compiles this feature of the command. The other packages and features are those of the steps before:
    // for the command alone, shared packages would have fewer features, and all that use them would be built again.
    let cluster_features = [features.last().copied().unwrap_or_default(), "toolpost-cli/restate"].join(",");
    let cluster_features = ["--features", cluster_features.trim_start_matches(',')];
    if clusters {
        let options = selection.options();
        let command =
            [&["clippy"], &*options, &cluster_features, &["--all-targets", "--", "-D", "warnings"]].concat();
        suite.status(&mut tally, "clippy of clusters", &command, &[]);
    }
    let tools = tools()?;
    timed(&mut tally, "tests", |tally| suite.tests(&tools, tally));
    if clusters {
        let tested = selection.tested();
        let command = [&["test"], &*tested, &cluster_features, &["--test", "it", "cluster::"]].concat();
        suite.status(&mut tally, "tests of clusters", &command, &[]);
    }
    timed(&mut tally, "documentation tests", |tally| suite.documentation_tests(tally));
    suite.status(
        &mut tally,
        "documentation",
        &[&["doc"], &*selection.options(), features, &["--no-deps", "--keep-going"]].concat(),
        &[("RUSTDOCFLAGS", "-D warnings")],
    );
    if selection.has("toolpost") || selection.has("toolpost-cli") {
        timed(&mut tally, "examples", |tally| {
            examples::run(workspace, &suite.logs, &[], tally);
            Ok(())
        });
    }
    if selection.has("toolpost-python") {
        timed(&mut tally, "python package", |tally| python::run(workspace, &suite.logs, tally));
    }
    if selection.has("toolpost-cli") {
        timed(&mut tally, "typescript package", |tally| typescript::run(root, &suite.logs, tally));
    }
    if selection.has("toolpost-cli") {
        if workspace.packages.iter().any(|package| package.name == "toolpost-python") {
            // Apart from the pages, so that an outdated one hides none of their failures.
            timed(&mut tally, "python reference", |tally| {
                site::check_python_reference(root)?;
                tally.passed += 1;
                Ok(())
            });
        }
        timed(&mut tally, "pages", |tally| {
            // The steps before have built the packages that the selection reaches.
            let build = |root: &Path, has_python, has_node| {
                if selection.has("toolpost-python") {
                    Ok(())
                } else {
                    pages::build(root, has_python, has_node)
                }
            };
            pages::run(workspace, &suite.logs, &[], tally, build)
        });
    }
    if selection.has("toolpost-cli") {
        timed(&mut tally, "installs", |tally| installs::run(workspace, tally));
        timed(&mut tally, "containers", |tally| containers::smoke(workspace, tally));
    }
    if selection.has("toolpost-sandbox") {
        timed(&mut tally, "other hosts", |tally| suite.other_hosts(tally));
    }
    if selection.has("toolpost-cli") {
        timed(&mut tally, "macOS", |tally| suite.macos(tally));
    }
    if *selection == Selection::All {
        timed(&mut tally, "dependencies", |tally| suite.dependencies(tally));
    }
    Ok(tally)
}

/// The directory for output of steps, which is made.
fn logs(root: &Path) -> Result<PathBuf> {
    let logs = root.join(".dev/log");
    fs::create_dir_all(&logs).map_err(|error| format!("cannot make {}: {error}", logs.display()))?;
    Ok(logs)
}

/// The checkout and where the run writes.
struct Suite<'a> {
    workspace: &'a Workspace,
    /// The packages of each step.
    selection: &'a Selection,
    logs: PathBuf,
    /// The options that give the façade its features.
    features: &'static [&'static str],
}

fn step(name: &str, begin: Instant, end: &str) {
    eprintln!("[{:7.1} s] {name}: {end}", begin.elapsed().as_secs_f64());
}

/// Runs one step. Its own trouble is a failure like any other: the steps after it run all the same.
fn timed(tally: &mut Tally, name: &str, run: impl FnOnce(&mut Tally) -> Result<()>) {
    let begin = Instant::now();
    let (failed, passed) = (tally.failed.len(), tally.passed);
    if let Err(error) = run(tally) {
        eprintln!("{error}");
        tally.failed.push(name.to_owned());
    }
    let end = match (tally.failed.len() > failed, tally.passed > passed) {
        (true, _) => "FAILED",
        (false, true) => "ok",
        (false, false) => "nothing was run",
    };
    step(name, begin, end);
}

impl Suite<'_> {
    fn cargo(&self, arguments: &[&str]) -> Task {
        Task::new("cargo", arguments).directory(&self.workspace.root).limit(Duration::from_mins(40))
    }

    /// A step that is one Cargo command, which passes or fails as a whole.
    fn status(&self, tally: &mut Tally, name: &str, arguments: &[&str], variables: &[(&str, &str)]) {
        timed(tally, name, |tally| {
            let mut task = self.cargo(arguments);
            for (variable, value) in variables {
                task = task.variable(variable, value);
            }
            if task.show()? {
                tally.passed += 1;
            } else {
                eprintln!("failed: `{}`", task.line());
                tally.failed.push(name.to_owned());
            }
            Ok(())
        });
    }

    fn tests(&self, tools: &Tools, tally: &mut Tally) -> Result<()> {
        if self.selection.tested().is_empty() {
            return Ok(());
        }
        let Some(nextest) = &tools.nextest else { return self.tests_without_nextest(tally) };
        self.nextest(nextest, "tests", &[], tally)?;
        // Compile errors are worded by what else is compiled: those tests have the default features alone.
        let others = "package(toolpost) - test(/^(misuse|good_use|alone)::/)";
        match self.features {
            [] => Ok(()),
            features => {
                self.nextest(nextest, "tests of features", &[features, &["-E", others]].concat(), tally)
            }
        }
    }

    fn nextest(&self, nextest: &[String], name: &str, more: &[&str], tally: &mut Tally) -> Result<()> {
        let file = self.workspace.target.join("nextest/ci/junit.xml");
        // The report of an earlier run must not speak for this one.
        if file.exists() {
            fs::remove_file(&file).map_err(|error| format!("cannot remove {}: {error}", file.display()))?;
        }
        let (program, first) = nextest.split_first().ok_or("no nextest")?;
        let mut task = Task::new(program, &[]).directory(&self.workspace.root).limit(Duration::from_mins(40));
        let words = first.iter().map(String::as_str).chain(["run", "--profile", "ci"]);
        for argument in words.chain(self.selection.tested()).chain(more.iter().copied()) {
            task = task.argument(argument);
        }
        let good = task.show()?;
        let mut found = Tally::default();
        match fs::read_to_string(&file) {
            Ok(text) => found.add_junit(&text),
            Err(error) => eprintln!("no report of the {name} at {}: {error}", file.display()),
        }
        tally.add_run(name, found, good);
        Ok(())
    }

    fn tests_without_nextest(&self, tally: &mut Tally) -> Result<()> {
        let task = self.cargo(
            &[
                &["test"],
                &*self.selection.tested(),
                &["--lib", "--bins", "--tests", "--no-fail-fast", "--", "--show-output"],
            ]
            .concat(),
        );
        self.libtest(&task, "tests", tally)
    }

    fn documentation_tests(&self, tally: &mut Tally) -> Result<()> {
        let libraries = self.selection.libraries(self.workspace);
        let task = self
            .cargo(&[&["test", "--doc"], &*libraries.options(), self.features, &["--no-fail-fast"]].concat());
        self.libtest(&task, "documentation tests", tally)
    }

    fn libtest(&self, task: &Task, name: &str, tally: &mut Tally) -> Result<()> {
        let log = self.logs.join(format!("{}.log", name.replace(' ', "-")));
        let captured = task.capture_to(&log)?;
        if !captured.success {
            eprint!("{}{}", captured.errors, captured.text);
        }
        let mut found = Tally::default();
        found.add_libtest(&captured.text);
        tally.add_run(name, found, captured.success);
        Ok(())
    }

    /// Checks that the sandbox crate compiles as on a host that it does not know, once for each simulated host that
    /// its code names.
    fn other_hosts(&self, tally: &mut Tally) -> Result<()> {
        let (workspace, mut hosts) = (self.workspace, BTreeSet::new());
        for path in workspace.below("crates/sandbox/").filter(|path| has_extension(path, "rs")) {
            hosts.extend(simulated_hosts(&workspace.text(path).unwrap_or_default()));
        }
        if hosts.is_empty() {
            tally.skip("other hosts", "the sandbox crate names no `toolpost_simulate…` configuration");
        }
        for host in hosts {
            // Another target directory: these flags would make everything else build again.
            let task = self
                .cargo(&["check", "--package", "toolpost-sandbox", "--target-dir", ".dev/target-simulated"])
                .variable("CARGO_ENCODED_RUSTFLAGS", &format!("--cfg\u{1f}{host}"));
            if task.show()? {
                tally.passed += 1;
            } else {
                eprintln!("failed with `--cfg {host}`: `{}`", task.line());
                tally.failed.push(format!("other hosts: {host}"));
            }
        }
        Ok(())
    }

    /// Checks that the command compiles for macOS.
    fn macos(&self, tally: &mut Tally) -> Result<()> {
        let root = &self.workspace.root;
        if let Some(need) =
            [&setup::ZIG, &setup::MACOS].into_iter().find(|need| !setup::there(root, need.probe))
        {
            tally.skip("macOS", &format!("{} is not installed", need.name));
            return Ok(());
        }
        let arguments = ["check", "--locked", "--target", "aarch64-apple-darwin", "--package=toolpost-cli"];
        let task = build::zigbuild(root, &arguments).limit(Duration::from_mins(40));
        if task.show()? {
            tally.passed += 1;
        } else {
            eprintln!("failed: `{}`", task.line());
            tally.failed.push("macOS".to_owned());
        }
        Ok(())
    }

    fn dependencies(&self, tally: &mut Tally) -> Result<()> {
        let installed = self.cargo(&["deny", "--version"]).capture().is_ok_and(|captured| captured.success);
        if !installed {
            tally.skip("dependencies", "cargo-deny is not installed: `cargo install --locked cargo-deny`");
            return Ok(());
        }
        let task = self.cargo(&["deny", "check", "bans", "licenses", "sources"]);
        if task.show()? {
            tally.passed += 1;
        } else {
            eprintln!("failed: `{}`", task.line());
            tally.failed.push("dependencies".to_owned());
        }
        Ok(())
    }
}

/// The simulated hosts that a file names, as the compiler's `--cfg` takes them.
fn simulated_hosts(text: &str) -> BTreeSet<String> {
    const BEGIN: &str = "toolpost_simulate";
    let mut hosts = BTreeSet::new();
    for (at, _) in text.match_indices(BEGIN) {
        let rest = &text[at..];
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let value = after.trim_start().strip_prefix('=').and_then(|value| {
            let value = value.trim_start().strip_prefix('"')?;
            value.split('"').next()
        });
        hosts.insert(match value {
            Some(value) => format!("{name}=\"{value}\""),
            None => name.to_owned(),
        });
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_hosts_are_read_from_code() {
        let text =
            "#[cfg(all(unix, not(toolpost_simulate_other_host)))]\n#[cfg(toolpost_simulate = \"poor\")]";
        let found: Vec<String> = simulated_hosts(text).into_iter().collect();
        assert_eq!(found, ["toolpost_simulate=\"poor\"", "toolpost_simulate_other_host"]);
        assert!(simulated_hosts("fn simulate() {}").is_empty());
    }
}
