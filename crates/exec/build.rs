//! Bundles the modules of the Python authoring library into one file, which `toolpost init tool` writes.
#![expect(clippy::disallowed_methods, reason = "cargo names the directory of the output in the environment")]

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

/// The modules below `scaffold/author`, each after those that it imports at its top.
const MODULES: [&str; 12] = [
    "_typing",
    "_errors",
    "_values",
    "_context",
    "_checks",
    "_schema",
    "_encoding",
    "_docstrings",
    "_tools",
    "_program",
    "_run",
    "_resident",
];

/// Imports for type checkers. Other modules of the bundle need no import of their own.
const TYPES: &str = "\
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from os import PathLike
    from typing import Any, BinaryIO, Concatenate, Literal, NoReturn
";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=scaffold/author");
    let read = |name: &str| fs::read_to_string(format!("scaffold/author/{name}.py"));
    let package = read("__init__")?;
    let (docstring, code) = package.split_once("\nfrom __future__").ok_or("no docstring")?;
    let names = code.find("__all__ = [").and_then(|at| code[at..].split_once("\n]\n")).ok_or("no names")?.0;
    let mut bundle =
        format!("{docstring}\nfrom __future__ import annotations\n\nimport sys\n\n{TYPES}\n{names}\n]\n");
    for module in MODULES {
        let text = read(module)?;
        let (title, code) = split_docstring(&text).ok_or_else(|| format!("{module} has no docstring"))?;
        let code = without_imports(code, module == "_typing");
        write!(bundle, "\n\n# {}\n\n{}\n", title.trim_end_matches('.'), code.trim())?;
    }
    fs::write(Path::new(&env::var("OUT_DIR")?).join("toolpost_author.py"), bundle)?;
    Ok(())
}

fn split_docstring(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix("\"\"\"")?.split_once("\"\"\"\n")
}

/// The code of a module without its imports of other modules and of types.
fn without_imports(code: &str, keeps_types: bool) -> String {
    let mut kept = String::new();
    let mut lines = code.lines().peekable();
    while let Some(line) = lines.next() {
        let own = line.trim_start();
        if own.starts_with("from ._") {
            if own.ends_with('(') {
                lines.by_ref().find(|line| line.trim() == ")");
            }
            // The blank line after the imports of a function.
            if own.len() < line.len() {
                lines.next_if(|line| line.is_empty());
            }
        } else if line == "TYPE_CHECKING = False" && !keeps_types {
            // The condition and its indented lines.
            lines.next();
            while lines.next_if(|line| line.starts_with(' ')).is_some() {}
        } else if !line.starts_with("from __future__")
            && line != "import sys"
            && !(keeps_types && line == "TYPE_CHECKING = False")
        {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}
