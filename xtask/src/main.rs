//! `cargo xtask`: the project's own chores.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the chores are a command of the developer and talk to a terminal"
)]

use std::path::Path;
use std::process::ExitCode;

use xtask::workspace::Workspace;
use xtask::{Result, attack, bench, dist, lines, publish, site, suite, tidy};

/// A chore: its name, what it does, and how.
type Chore = (&'static str, &'static str, Work);

/// The implementation of a chore; the answer is whether all is well.
enum Work {
    /// As a whole.
    Whole(fn(&Path) -> Result<bool>),
    /// As a whole, or the parts whose names have one of these words.
    Parts(fn(&Path, &[String]) -> Result<bool>),
}

const CHORES: &[Chore] = &[
    (
        "test",
        "set up what is needed and run all that a change must pass; `--changed [COMMIT]`: what the change reaches",
        Work::Parts(suite::run),
    ),
    (
        "tidy",
        "hold the rules of the tree: layers, sizes, documentation, names in CI",
        Work::Whole(check_tidy),
    ),
    (
        "examples",
        "run the examples, or those whose paths have one of these WORDS",
        Work::Parts(suite::examples::run_alone),
    ),
    (
        "pages",
        "run the code blocks of the documentation, or of the pages whose paths have one of these WORDS",
        Work::Parts(suite::pages::run_alone),
    ),
    (
        "attack",
        "run the whole attack table of the sandbox, or the parts whose names have these WORDS, and write docs/attacks.md",
        Work::Parts(attack::run),
    ),
    (
        "containers",
        "run the command and the attack table in containers with Docker's defaults, or the part (smoke, attack) of these WORDS",
        Work::Parts(suite::containers::run_alone),
    ),
    (
        "bench",
        "measure the promises with numbers, or those of the programs whose names have these WORDS, into benches/results",
        Work::Parts(bench::run),
    ),
    (
        "wheel",
        "build the wheels of the Python package, or those of targets with these WORDS, into .dev/python-wheels/release",
        Work::Parts(suite::python::wheels),
    ),
    (
        "publish-check",
        "package and compile every published crate as the registry gets it, and build its documentation as docs.rs does",
        Work::Whole(publish::check),
    ),
    (
        "semver",
        "compare the public interface of the libraries with that of the baseline in xtask/budgets.toml",
        Work::Whole(publish::semver),
    ),
    (
        "installs",
        "pack the command that `cargo build` left, and install and use each package",
        Work::Whole(suite::installs::run_alone),
    ),
    (
        "dist",
        "build the static binaries and pack them: archives, Debian, npm, image, checksums, into target/dist; install each",
        Work::Whole(dist::run),
    ),
    (
        "machine",
        "boot a kernel for each static binary, or those of targets with these WORDS, and confine code there",
        Work::Parts(dist::machine::run),
    ),
    ("site", "build the documentation as a site in target/site", Work::Whole(site::run)),
    ("reference", "write the generated pages of docs/reference", Work::Whole(site::reference)),
    ("lines", "count the lines of code by crate, tests apart", Work::Whole(lines::run)),
    ("help", "print this page", Work::Whole(|_| Ok(help()))),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, words) = match arguments.as_slice() {
        [] => ("help", &[][..]),
        [name] if name == "--help" || name == "-h" => ("help", &[][..]),
        [name, words @ ..] => (name.as_str(), words),
    };
    let Some((_, _, chore)) = CHORES.iter().find(|(chore, _, _)| *chore == name) else {
        eprint!("error: there is no chore `{name}`");
        let nearest = CHORES.iter().map(|(chore, _, _)| (distance(name, chore), chore)).min();
        match nearest {
            Some((3.., _)) | None => eprintln!("; `cargo xtask help` lists them"),
            Some((_, chore)) => eprintln!("; did you mean `{chore}`? `cargo xtask help` lists them"),
        }
        return ExitCode::from(2);
    };
    match (chore, words) {
        (Work::Whole(work), []) => end(work(&xtask::root())),
        (Work::Whole(_), [extra, ..]) => {
            eprintln!("error: `{name}` takes no arguments, found `{extra}`; leave it out");
            ExitCode::from(2)
        }
        (Work::Parts(work), words) => end(work(&xtask::root(), words)),
    }
}

fn end(result: Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn help() -> bool {
    println!("The project's own chores.\n\nUsage: cargo xtask CHORE\n");
    for (name, summary, _) in CHORES {
        println!("  {name:13} {summary}");
    }
    true
}

fn check_tidy(root: &Path) -> Result<bool> {
    let complaints = tidy::check(&Workspace::read(root)?)?;
    for complaint in &complaints {
        println!("{complaint}");
    }
    match complaints.len() {
        0 => println!("tidy"),
        count => println!("{count} complaints"),
    }
    Ok(complaints.is_empty())
}

/// The number of letters that must be inserted, removed or replaced (or neighbors swapped: counted as one) to get from one word
/// to the other.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![vec![0; other.len() + 1]; one.len() + 1];
    for i in 0..=one.len() {
        for j in 0..=other.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let change = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
                let swap = if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                    rows[i - 2][j - 2] + 1
                } else {
                    usize::MAX
                };
                change.min(swap).min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1)
            };
        }
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_changes() {
        let rows = [
            ("test", "test", 0),
            ("tset", "test", 1),
            ("benhc", "bench", 1),
            ("tid", "tidy", 1),
            ("x", "", 1),
        ];
        for (one, other, expected) in rows {
            assert_eq!(distance(one, other), expected, "{one} {other}");
        }
    }
}
