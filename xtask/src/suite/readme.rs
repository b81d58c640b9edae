//! READMEs of examples: their commands are run in a fresh copy, with an empty home, and their output is compared.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::examples::End;
use crate::Result;
use crate::command::{Captured, Task};
use crate::workspace::Workspace;

/// What a README needs to be followed.
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

/// Where the copy and its home are, below the root.
const COPY: &str = ".dev/examples";
/// How long the commands of one README may take.
const LIMIT: Duration = Duration::from_mins(5);
/// How long a registry may take to answer.
const REGISTRY_LIMIT: Duration = Duration::from_secs(30);
/// What stands in a line of output for any text.
const ANY: char = '…';
/// What runs before the commands: output in one stream, and no background process left behind.
const PRELUDE: &str = "exec 2>&1; trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n";

/// Runs all `sh` blocks of the README of the example at `path` in one shell, which stops at the first command that
/// fails. Each line of the `text` blocks must be a line of the output; `…` in it stands for any text.
pub fn follow(root: &Path, target: &Path, log: &Path, path: &str, check: &Readme) -> Result<End> {
    let file = root.join(path).join("README.md");
    let text =
        fs::read_to_string(&file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let commands: String = blocks(&text, "sh").collect();
    if commands.is_empty() {
        return Err(format!("{} has no `sh` block", file.display()));
    }
    if check.is_online && std::env::var_os("TOOLPOST_NO_NETWORK").is_some() {
        return Ok(End::Skipped("TOOLPOST_NO_NETWORK is set".to_owned()));
    }
    let folder = copy(root, path)?;
    let task = |program: &str, arguments: &[&str]| environment(root, target, Task::new(program, arguments));
    for package in check.packages {
        if let Some(reason) = missing(&task, *package) {
            return Ok(End::Skipped(reason));
        }
    }
    let build = Task::new("cargo", &["build", "--quiet", "--bin", "toolpost"]).folder(root);
    if !build.show()? {
        return Err(format!("failed: `{}`", build.line()));
    }
    let script = format!("{PRELUDE}{commands}");
    let mut task = task("bash", &["-euc", &script]).folder(&root.join(folder)).limit(LIMIT);
    if !check.is_online {
        task = task.variable("TOOLPOST_NO_NETWORK", "1");
    }
    let captured = task.capture_to(log)?;
    compare(&text, &captured).map(|()| End::Passed)
}

/// Copies the files of `examples` that Git has, and makes an empty home. The answer is the copy of the example.
fn copy(root: &Path, path: &str) -> Result<String> {
    let to = root.join(COPY);
    let wrong = |error: std::io::Error| format!("cannot copy the examples to {}: {error}", to.display());
    if to.exists() {
        fs::remove_dir_all(&to).map_err(wrong)?;
    }
    fs::create_dir_all(to.join("home")).map_err(wrong)?;
    for file in Workspace::read(root)?.below("examples/") {
        let copy = to.join(file);
        fs::create_dir_all(copy.parent().unwrap_or(&to)).map_err(wrong)?;
        fs::copy(root.join(file), copy).map_err(wrong)?;
    }
    Ok(format!("{COPY}/{path}"))
}

/// A new user's environment: an empty home, and `toolpost` on the path.
fn environment(root: &Path, target: &Path, task: Task) -> Task {
    let home = root.join(COPY).join("home");
    let path = std::env::var("PATH").unwrap_or_default();
    let task = task.variable("PATH", &format!("{}:{path}", target.join("debug").display()));
    let folders = [
        ("HOME", ""),
        ("XDG_CACHE_HOME", ".cache"),
        ("XDG_CONFIG_HOME", ".config"),
        ("XDG_DATA_HOME", ".local/share"),
        ("XDG_STATE_HOME", ".local/state"),
    ];
    folders
        .iter()
        .fold(task, |task, (name, folder)| task.variable(name, &home.join(folder).to_string_lossy()))
}

/// Why a package cannot be had, if it cannot.
fn missing(task: &dyn Fn(&str, &[&str]) -> Task, package: Package) -> Option<String> {
    let (name, task) = match package {
        Package::Python(name) => {
            (name, task("python3", &["-m", "pip", "--quiet", "index", "versions", name]))
        }
        Package::Node(name) => (name, task("npm", &["view", name, "version"])),
    };
    let captured = match task.limit(REGISTRY_LIMIT).capture() {
        Ok(captured) if captured.success => return None,
        Ok(captured) => captured.errors,
        Err(error) => error,
    };
    let said = captured.lines().find(|line| line.to_lowercase().contains("error")).unwrap_or("no answer");
    Some(format!("no registry has `{name}`: {said}"))
}

/// The fenced blocks of a language in Markdown.
fn blocks<'a>(text: &'a str, language: &'a str) -> impl Iterator<Item = &'a str> {
    let mut is_inside = false;
    text.split("```").filter_map(move |part| {
        let block = is_inside.then_some(part);
        is_inside = !is_inside;
        block?.strip_prefix(language)?.strip_prefix('\n')
    })
}

fn compare(text: &str, captured: &Captured) -> Result<()> {
    let output = &captured.text;
    if !captured.success {
        let status =
            captured.status.map_or("a signal or the time limit".to_owned(), |n| format!("status {n}"));
        return Err(format!("its commands ended with {status}\n{output}"));
    }
    let missing = blocks(text, "text")
        .flat_map(str::lines)
        .find(|line| !output.lines().any(|printed| fits(printed, line)));
    missing.map_or(Ok(()), |line| Err(format!("did not print `{line}`\n{output}")))
}

/// Whether a printed line is the expected one, in which `…` stands for any text. Space at the end does not count.
fn fits(printed: &str, expected: &str) -> bool {
    let (printed, expected) = (printed.trim_end(), expected.trim_end());
    let Some((first, rest)) = expected.split_once(ANY) else { return printed == expected };
    let Some(mut left) = printed.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once(ANY).unwrap_or(("", rest));
    for piece in middle.split(ANY) {
        match left.split_once(piece) {
            Some((_, after)) => left = after,
            None => return false,
        }
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const README: &str = "# A\n\n```sh\ntrue\n```\n\n```text\none\ntwo (… ms)\n```\n\n```sh\nfalse\n```\n";

    #[test]
    fn blocks_are_those_of_one_language() {
        assert_eq!(blocks(README, "sh").collect::<Vec<_>>(), ["true\n", "false\n"]);
        assert_eq!(blocks(README, "text").collect::<Vec<_>>(), ["one\ntwo (… ms)\n"]);
        assert_eq!(blocks(README, "s").count(), 0);
    }

    #[test]
    fn every_line_of_the_readme_must_be_printed() {
        let captured = |text: &str, status| Captured {
            success: status == 0,
            status: Some(status),
            text: text.to_owned(),
            errors: String::new(),
        };
        for (text, status, is_good) in [
            ("two (12 ms)\nmore\none\n", 0, true),
            ("one\ntwo (12 ms)\n", 1, false),
            ("one\ntwo (12 s)\n", 0, false),
            ("one more\ntwo (12 ms)\n", 0, false),
            ("", 0, false),
        ] {
            assert_eq!(compare(README, &captured(text, status)).is_ok(), is_good, "{text}");
        }
    }

    #[test]
    fn an_ellipsis_stands_for_any_text() {
        for (printed, expected, is_fit) in [
            ("a b c d", "a … d", true),
            ("a b c d", "a…", true),
            ("a b c d", "…d", true),
            ("a b c d", "a … c … d", false),
            ("a b c  d", "a … c … d", true),
            ("a b", "a b c", false),
            ("a", "a…a", false),
        ] {
            assert_eq!(fits(printed, expected), is_fit, "{printed} {expected}");
        }
    }
}
