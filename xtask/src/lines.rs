//! Counts the lines of code by crate: what is neither blank nor a comment. Inline tests, `tests/`, benches and examples
//! count as tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::Result;
use crate::source::Source;
use crate::workspace::Workspace;

/// Lines of code of one crate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Lines {
    source: usize,
    tests: usize,
}

/// Prints the lines of each crate and of the workspace.
///
/// Fails only where the workspace cannot be read.
pub fn run(root: &Path) -> Result<bool> {
    let sources = Workspace::read(root)?.sources();
    let crates = count(&sources);
    println!("{:24} {:>8} {:>8}", "", "source", "tests");
    for (name, lines) in &crates {
        println!("{name:24} {:>8} {:>8}", lines.source, lines.tests);
    }
    let total = crates.values().fold(Lines::default(), |sum, lines| Lines {
        source: sum.source + lines.source,
        tests: sum.tests + lines.tests,
    });
    println!("{:24} {:>8} {:>8}", "all", total.source, total.tests);
    Ok(true)
}

fn count(sources: &[Source]) -> BTreeMap<String, Lines> {
    let tests = test_modules(sources);
    let mut crates: BTreeMap<String, Lines> = BTreeMap::new();
    for source in sources {
        let lines = crates.entry(crate_of(&source.path)).or_default();
        let is_test = source.is_test_file() || tests.iter().any(|module| is_within(&source.path, module));
        for line in source.lines.iter().filter(|line| !line.code.trim().is_empty()) {
            if is_test || line.in_test { lines.tests += 1 } else { lines.source += 1 }
        }
    }
    crates
}

/// The crate that a file belongs to: `crates/core`, or the first part of the path.
fn crate_of(path: &str) -> String {
    let parts = if path.starts_with("crates/") { 2 } else { 1 };
    path.split('/').take(parts).collect::<Vec<_>>().join("/")
}

/// The modules that files declare under `#[cfg(test)]`, as paths without `.rs`.
fn test_modules(sources: &[Source]) -> BTreeSet<String> {
    let mut modules = BTreeSet::new();
    for source in sources {
        let stem = source.path.trim_end_matches(".rs");
        let directory = match stem.rsplit_once('/') {
            Some((directory, "lib" | "main" | "mod")) => directory,
            _ => stem,
        };
        for line in source.lines.iter().filter(|line| line.in_test) {
            let declaration =
                line.code.trim().trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
            if let Some(name) = declaration.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';')) {
                modules.insert(format!("{directory}/{name}"));
            }
        }
    }
    modules
}

fn is_within(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_apart() {
        let sources = [
            Source::new(
                "crates/a/src/lib.rs",
                "//! A page.\nfn f() {}\n\n#[cfg(test)]\nmod checks;\nmod other;\n",
            ),
            Source::new("crates/a/src/checks.rs", "// why\nfn g() {}\n"),
            Source::new(
                "crates/a/src/other.rs",
                "fn h() {\n}\n#[cfg(test)]\nmod tests {\n    fn t() {}\n}\n",
            ),
            Source::new("crates/a/tests/it/main.rs", "fn main() {}\n"),
            Source::new("xtask/src/main.rs", "fn main() {}\n"),
        ];
        let counted = count(&sources);
        assert_eq!(counted["crates/a"], Lines { source: 4, tests: 8 });
        assert_eq!(counted["xtask"], Lines { source: 1, tests: 0 });
    }
}
