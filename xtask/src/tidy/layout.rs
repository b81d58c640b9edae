//! The rules on where things lie and what must stand in them: crate roots, tests, examples, decision records.

use std::collections::BTreeSet;

use super::Complaint;
use super::tables::{ALONE, DECISION_HEADINGS, TEST_DIRECTORIES, UNNAMED_SOURCES, UNSAFE_PACKAGES};
use crate::Result;
use crate::attack;
use crate::bench::BENCHES;
use crate::source::{Source, find_word};
use crate::suite::examples::EXAMPLES;
use crate::workspace::{Package, Workspace, has_extension};

pub(super) fn check(workspace: &Workspace, sources: &[Source]) -> Result<Vec<Complaint>> {
    let mut complaints = Vec::new();
    for package in &workspace.packages {
        complaints.extend(roots(package, sources));
        complaints.extend(manifest(workspace, package)?);
        complaints.extend(modules(workspace, package, sources));
    }
    complaints.extend(examples(workspace));
    complaints.extend(decisions(workspace));
    complaints.extend(attacks(workspace));
    complaints.extend(alone(workspace)?);
    Ok(complaints)
}

fn table(workspace: &Workspace, path: &str) -> Result<toml::Table> {
    let text = workspace.text(path).ok_or_else(|| format!("cannot read {path}"))?;
    text.parse().map_err(|error| format!("{path} is not TOML: {error}"))
}

fn roots(package: &Package, sources: &[Source]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let of = |path: &str| sources.iter().find(|source| source.path == path);
    let page = package.library.as_ref().or(package.binaries.first());
    for path in package.library.iter().chain(&package.binaries) {
        let Some(source) = of(path) else { continue };
        let docs = source.lines.iter().filter(|line| line.comment.starts_with("//!"));
        let docs: Vec<&str> = docs.map(|line| line.comment.as_str()).collect();
        if docs.is_empty() {
            let action = "begin it with `//!` and what the crate is for";
            complaints.push(Complaint::new("crate-page", path, "a crate root without `//!`", action));
        }
        let headed = docs.iter().any(|line| line.trim_start_matches("//!").trim() == "# Invariants");
        if Some(path) == page && !headed {
            complaints.push(Complaint::new(
                "invariants",
                path,
                "the `//!` page has no heading `# Invariants`",
                "say what always holds, and what is deliberately absent",
            ));
        }
        let forbids = source.attributes.iter().any(|attribute| attribute.text == "#![forbid(unsafe_code)]");
        if !forbids && !UNSAFE_PACKAGES.contains(&package.name.as_str()) {
            complaints.push(Complaint::new(
                "forbid-unsafe",
                path,
                "a crate root without `#![forbid(unsafe_code)]`",
                "add it: unsafe code lives in the sandbox crate",
            ));
        }
    }
    complaints
}

fn manifest(workspace: &Workspace, package: &Package) -> Result<Vec<Complaint>> {
    let path = format!("{}/Cargo.toml", package.directory);
    let manifest = table(workspace, &path)?;
    let inherits = manifest
        .get("lints")
        .and_then(|lints| lints.get("workspace"))
        .and_then(toml::Value::as_bool)
        .unwrap_or_default();
    let complaint = (!inherits).then(|| {
        Complaint::new(
            "documented",
            &path,
            "the lints of the workspace do not apply",
            "add `[lints]` with `workspace = true`: they hold documentation, among others",
        )
    });
    Ok(complaint.into_iter().collect())
}

/// Every Rust file of a package is compiled: a root, or named by a `mod` of its parent. One test binary.
fn modules(workspace: &Workspace, package: &Package, sources: &[Source]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let prefix = if package.directory.is_empty() { String::new() } else { format!("{}/", package.directory) };
    let roots: BTreeSet<&str> = package.library.iter().chain(&package.binaries).map(String::as_str).collect();
    for source in sources {
        let Some(path) = source.path.strip_prefix(&prefix) else { continue };
        let base = if path.starts_with("src/") && !roots.contains(source.path.as_str()) {
            if UNNAMED_SOURCES.iter().any(|(listed, _)| *listed == source.path) {
                continue;
            }
            path
        } else if let Some(below) = path.strip_prefix("tests/") {
            if TEST_DIRECTORIES.iter().any(|(directory, _)| below.starts_with(directory))
                || below == "it/main.rs"
            {
                continue;
            }
            if !below.starts_with("it/") {
                complaints.push(Complaint::new(
                    "one-test-binary",
                    &source.path,
                    "a test binary of its own",
                    "make it a module of `tests/it/main.rs`: each binary is one more link",
                ));
                continue;
            }
            path
        } else {
            continue;
        };
        let by_path = sources.iter().any(|parent| parent.named_paths.contains(&source.path));
        if !by_path && !is_named(base, &prefix, sources) {
            complaints.push(Complaint::new(
                "forgotten-file",
                &source.path,
                "no `mod` names this file, so nothing compiles it",
                "add the `mod` to its parent, or remove the file",
            ));
        }
    }
    let has_tests = workspace.below(&format!("{prefix}tests/it/")).next().is_some();
    if has_tests && !workspace.files.contains(&format!("{prefix}tests/it/main.rs")) {
        complaints.push(Complaint::new(
            "one-test-binary",
            &format!("{prefix}tests/it/main.rs"),
            "the directory has no `main.rs`",
            "add it, with a `mod` for each file",
        ));
    }
    complaints
}

/// Whether a `mod` of the parent module names the file at `path` below the package's directory.
fn is_named(path: &str, prefix: &str, sources: &[Source]) -> bool {
    let module = path.trim_end_matches(".rs").trim_end_matches("/mod");
    let Some((directory, name)) = module.rsplit_once('/') else { return false };
    let parents = [
        format!("{prefix}{directory}/lib.rs"),
        format!("{prefix}{directory}/main.rs"),
        format!("{prefix}{directory}/mod.rs"),
        format!("{prefix}{directory}.rs"),
    ];
    let declaration = format!("mod {name}");
    sources.iter().filter(|source| parents.contains(&source.path)).any(|source| {
        source.lines.iter().any(|line| {
            find_word(&line.code, &declaration)
                .is_some_and(|at| line.code[at + declaration.len()..].trim_start().starts_with(';'))
        })
    })
}

fn examples(workspace: &Workspace) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let entries: BTreeSet<String> = workspace
        .below("examples/")
        .filter_map(|path| path.split('/').nth(1))
        .map(|entry| format!("examples/{entry}"))
        .collect();
    for entry in &entries {
        if entry != "examples/README.md" && !EXAMPLES.iter().any(|example| example.path == entry) {
            complaints.push(Complaint::new(
                "examples",
                entry,
                "no row of EXAMPLES names it, so nothing runs it",
                "add a row with its command and what it must print (xtask/src/suite/examples.rs)",
            ));
        }
    }
    for example in EXAMPLES {
        let there = workspace.root.join(example.path).exists();
        if !there {
            complaints.push(Complaint::new(
                "examples",
                "xtask/src/suite/examples.rs",
                format!("`{}` is not there", example.path),
                "add the example, or remove its row",
            ));
        }
    }
    for package in &workspace.packages {
        let directory = format!("{}/examples/", package.directory);
        for path in workspace.below(&directory).filter(|path| has_extension(path, "rs")) {
            let name = path[directory.len()..].split('/').next().unwrap_or_default().trim_end_matches(".rs");
            let measured = BENCHES.iter().any(|bench| bench.package == package.name && bench.example == name);
            let run = EXAMPLES.iter().any(|example| example.path == path);
            if !measured && !run {
                complaints.push(Complaint::new(
                    "examples",
                    path,
                    "neither EXAMPLES nor BENCHES names it, so nothing runs it",
                    "add a row to the table that fits",
                ));
            }
        }
    }
    complaints
}

fn decisions(workspace: &Workspace) -> Vec<Complaint> {
    const DIRECTORY: &str = "docs/decisions/";
    let mut complaints = Vec::new();
    let records =
        workspace.below(DIRECTORY).filter(|path| has_extension(path, "md") && !path.ends_with("README.md"));
    for (position, path) in records.enumerate() {
        let number = path[DIRECTORY.len()..].split('-').next().unwrap_or_default();
        if number != format!("{:04}", position + 1) {
            complaints.push(Complaint::new(
                "decisions",
                path,
                format!("numbered `{number}`, expected `{:04}`", position + 1),
                "number the records without gaps and without repeats",
            ));
        }
        let text = workspace.text(path).unwrap_or_default();
        let headings: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("## "))
            .map(str::trim)
            .filter(|heading| DECISION_HEADINGS.contains(heading))
            .collect();
        if headings != DECISION_HEADINGS {
            complaints.push(Complaint::new(
                "decisions",
                path,
                format!("has the headings {headings:?}, expected {DECISION_HEADINGS:?} in this order"),
                "write the missing part",
            ));
        }
    }
    complaints
}

/// Every row of the attack table has an answer in the document that the run writes.
fn attacks(workspace: &Workspace) -> Vec<Complaint> {
    let Some(rows) = workspace.text(attack::ROWS) else { return Vec::new() };
    let rows = attack::rows_of(&rows);
    let answered = attack::answered(&workspace.text(attack::DOCUMENT).unwrap_or_default());
    let missing: Vec<String> = rows.difference(&answered).map(u32::to_string).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    vec![Complaint::new(
        "attack-table",
        attack::DOCUMENT,
        format!("the rows {} of the attack table have no answer", missing.join(", ")),
        "run `cargo xtask attack`, which writes it",
    )]
}

fn alone(workspace: &Workspace) -> Result<Vec<Complaint>> {
    let (path, expected) = ALONE;
    if !workspace.files.contains(path) {
        return Ok(Vec::new());
    }
    let manifest = table(workspace, path)?;
    let names: Vec<&str> = ["dependencies", "dev-dependencies", "build-dependencies"]
        .iter()
        .filter_map(|section| manifest.get(*section)?.as_table())
        .flat_map(|section| section.keys().map(String::as_str))
        .filter(|name| !expected.contains(name))
        .collect();
    Ok(names
        .iter()
        .map(|name| {
            Complaint::new(
                "alone",
                path,
                format!("depends on `{name}`, expected only {}", expected.join(" and ")),
                "make the façade re-export what is needed",
            )
        })
        .collect())
}
