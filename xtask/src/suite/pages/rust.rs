//! The Rust blocks of all pages: documentation tests of the façade.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::shell::Wrong;
use crate::Result;
use crate::command::Task;
use crate::workspace::has_extension;

/// A Rust block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RustBlock {
    /// The page.
    pub page: String,
    /// The line of its fence.
    pub line: usize,
    /// The words after the fence.
    pub words: Vec<String>,
    /// The program. Without `fn main`, it is the body of an async function that returns a result.
    pub text: String,
}

/// The libraries that a block may name.
const LIBRARIES: &[&str] = &["toolpost", "toolpost_testkit", "serde", "serde_json", "tokio", "schemars"];

/// An example of the façade that the suite builds, with its dependencies.
const EXAMPLE: &str = "calculator";

/// Compiles and runs the blocks. The answer has the blocks that failed.
pub fn run(
    root: &Path,
    target: &Path,
    directory: &Path,
    blocks: &[RustBlock],
) -> Result<Vec<(String, Wrong)>> {
    let (text, lines) = document(blocks);
    let file = directory.join("rust.md");
    fs::create_dir_all(directory)
        .and_then(|()| fs::write(&file, text))
        .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    let options = ["build", "--quiet", "--workspace", "--features", crate::suite::FEATURES, "--example"];
    let build =
        Task::new("cargo", &options).argument(EXAMPLE).argument("--message-format=json").directory(root);
    let messages = build.capture()?;
    if !messages.success {
        return Err(format!("failed: `{}`\n{}", build.line(), messages.errors));
    }
    let mut task = Task::new("rustdoc", &["--test", "--edition=2024", "-L"])
        .argument(&format!("dependency={}", target.join("debug/deps").display()))
        .directory(directory);
    for (name, path) in libraries(&messages.text) {
        task = task.argument("--extern").argument(&format!("{name}={path}"));
    }
    let task = task.argument(&file.to_string_lossy());
    let captured = task.capture()?;
    let failed = failures(&captured.text, &lines, blocks);
    if !captured.success && failed.is_empty() {
        return Err(format!("failed: `{}`\n{}{}", task.line(), captured.text, captured.errors));
    }
    Ok(failed)
}

/// The libraries among the artifacts that Cargo reports.
fn libraries(messages: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for message in messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let name = message["target"]["name"].as_str().unwrap_or_default().replace('-', "_");
        let files = message["filenames"].as_array().map(Vec::as_slice).unwrap_or_default();
        let library = files.iter().filter_map(Value::as_str).find(|file| has_extension(file, "rlib"));
        if let Some(library) = library.filter(|_| LIBRARIES.contains(&name.as_str())) {
            found.push((name, library.to_owned()));
        }
    }
    found
}

/// One document with all blocks, and the line of each fence in it.
fn document(blocks: &[RustBlock]) -> (String, Vec<usize>) {
    let (mut text, mut lines) = (String::new(), Vec::new());
    for block in blocks {
        lines.push(text.lines().count() + 1);
        let words = block.words.join(",");
        // Writing to a string cannot fail.
        let _ = if block.text.contains("fn main(") {
            writeln!(text, "```{words}\n{}```\n", block.text)
        } else {
            writeln!(
                text,
                "```{words}\n#![allow(unused)]\nasync fn page() -> Result<(), Box<dyn std::error::Error>> {{\n{}Ok(()) }}\n\
                 fn main() {{ tokio::runtime::Runtime::new().unwrap().block_on(page()).unwrap() }}\n```\n",
                block.text
            )
        };
    }
    (text, lines)
}

/// The failures in the output of rustdoc.
fn failures(output: &str, lines: &[usize], blocks: &[RustBlock]) -> Vec<(String, Wrong)> {
    let mut failed = Vec::new();
    for part in output.split("\n---- ").skip(1) {
        let (head, rest) = part.split_once(" stdout ----\n").unwrap_or((part, ""));
        let line = head.rsplit_once("(line ").and_then(|(_, line)| line.trim_end_matches(')').parse().ok());
        let block = line.and_then(|line: usize| lines.iter().position(|begin| *begin == line));
        if let Some(block) = block.map(|index| &blocks[index]) {
            let reason = rest.split("\nfailures:\n").next().unwrap_or(rest).trim();
            failed.push((block.page.clone(), (block.line, format!("the Rust block fails:\n{reason}"))));
        }
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(page: &str, line: usize, text: &str) -> RustBlock {
        RustBlock {
            page: page.to_owned(),
            line,
            words: vec!["rust".to_owned(), "no_run".to_owned()],
            text: text.to_owned(),
        }
    }

    #[test]
    fn failures_name_the_page() {
        let blocks = [block("a.md", 3, "fn main() {}\n"), block("b.md", 7, "wrong;\n")];
        let (text, lines) = document(&blocks);
        assert!(text.starts_with("```rust,no_run\nfn main() {}\n```\n\n```rust,no_run\n#![allow"), "{text}");
        assert_eq!(lines, [1, 5]);
        let output =
            "\nfailures:\n\n---- x/rust.md - (line 5) stdout ----\nerror: no `wrong`\n\nfailures:\n    x\n";
        let expected = ("b.md".to_owned(), (7, "the Rust block fails:\nerror: no `wrong`".to_owned()));
        assert_eq!(failures(output, &lines, &blocks), [expected]);
    }

    #[test]
    fn libraries_are_read_from_messages() {
        let messages = r#"{"target":{"name":"serde-json"},"filenames":["/t/libserde_json-1.rlib","/t/a.rmeta"]}
{"target":{"name":"other"},"filenames":["/t/libother.rlib"]}
{"reason":"build-finished"}"#;
        assert_eq!(libraries(messages), [("serde_json".to_owned(), "/t/libserde_json-1.rlib".to_owned())]);
    }
}
