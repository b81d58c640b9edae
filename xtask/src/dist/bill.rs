//! The content of the binary: the bill of materials in `CycloneDX` JSON, and the licenses of the packages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Target, output};
use crate::Result;
use crate::command::Task;

/// Parts of the binary besides packages of Cargo.
const FOREWORD: &str = "The binary contains these packages:\n\n\
    musl: MIT, Copyright 2005-2020 Rich Felker and others\n\
    Rust standard library: MIT OR Apache-2.0, Copyright The Rust Project Contributors\n";

/// A package by name and version.
type Id = (String, String);

/// The packages that the command is built from.
#[derive(Debug)]
pub struct Bill {
    root: PathBuf,
    /// Each package with those that it uses.
    packages: BTreeMap<Id, BTreeSet<Id>>,
    /// Its license expression, and its directory.
    facts: BTreeMap<Id, (String, PathBuf)>,
}

impl Bill {
    /// Reads the packages of the command on a platform, with its build scripts and macros.
    pub fn read(root: &Path, target: Target) -> Result<Self> {
        let triple = target.triple();
        let cargo = |words: &[&str]| output(&Task::new("cargo", words).directory(root));
        let options = ["--edges=normal,build", "--prefix=depth", "--format= {p}", "--target", &triple];
        let tree = cargo(&[&["tree", "--locked", "--package=toolpost-cli"], &options[..]].concat())?;
        let metadata = cargo(&["metadata", "--locked", "--format-version=1", "--filter-platform", &triple])?;
        let metadata: Value =
            serde_json::from_str(&metadata).map_err(|error| format!("`cargo metadata`: {error}"))?;
        let facts = metadata["packages"].as_array().into_iter().flatten().filter_map(|package| {
            let text = |key: &str| package[key].as_str();
            let id = (text("name")?.to_owned(), text("version")?.to_owned());
            let directory = Path::new(text("manifest_path")?).parent()?.to_owned();
            Some((id, (text("license").unwrap_or_default().replace('/', " OR "), directory)))
        });
        Ok(Self { root: root.to_owned(), packages: packages(&tree)?, facts: facts.collect() })
    }

    /// The bill of materials, as of `time` in RFC 3339.
    pub fn cyclonedx(&self, version: &str, time: &str) -> Result<Value> {
        let lock = fs::read_to_string(self.root.join("Cargo.lock")).map_err(|error| error.to_string())?;
        let lock: toml::Table = lock.parse().map_err(|error| format!("Cargo.lock: {error}"))?;
        let locked = lock.get("package").and_then(toml::Value::as_array).into_iter().flatten();
        let sums: BTreeMap<Id, &str> = locked
            .filter_map(|package| {
                let text = |key: &str| package.get(key)?.as_str();
                Some(((text("name")?.to_owned(), text("version")?.to_owned()), text("checksum")?))
            })
            .collect();
        let component = |id: &Id| {
            let mut component = json!({
                "type": "library", "bom-ref": url(id), "name": id.0, "version": id.1, "purl": url(id),
            });
            if let Some((license, _)) = self.facts.get(id).filter(|(license, _)| !license.is_empty()) {
                component["licenses"] = json!([{ "expression": license }]);
            }
            if let Some(sum) = sums.get(id) {
                component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
            }
            component
        };
        let is_command = |id: &Id| id.0 == "toolpost-cli";
        let components: Vec<Value> =
            self.packages.keys().filter(|id| !is_command(id)).map(component).collect();
        let uses = self.packages.iter().map(
            |(id, used)| json!({ "ref": url(id), "dependsOn": used.iter().map(url).collect::<Vec<_>>() }),
        );
        let command = url(&("toolpost-cli".to_owned(), version.to_owned()));
        Ok(json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {
                "timestamp": time,
                "component": {
                    "type": "application", "bom-ref": command, "purl": command,
                    "name": "toolpost", "version": version,
                    "licenses": [{ "expression": "MIT OR Apache-2.0" }],
                },
            },
            "components": components,
            "dependencies": uses.collect::<Vec<_>>(),
        }))
    }

    /// The license files of all packages of others; the same text once, after the packages that have it.
    pub fn licenses(&self) -> Result<String> {
        let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut expressions = String::new();
        for (id, (license, directory)) in self.facts.iter().filter(|(id, _)| self.packages.contains_key(*id))
        {
            if directory.starts_with(&self.root) {
                continue;
            }
            let label = format!("{} {}", id.0, id.1);
            expressions.extend([&label, ": ", license, "\n"]);
            let entries = fs::read_dir(directory)
                .map_err(|error| format!("cannot list {}: {error}", directory.display()))?;
            for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
                let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
                let is_license = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"]
                    .iter()
                    .any(|begin| name.starts_with(begin));
                if let (true, Ok(text)) = (is_license, fs::read_to_string(&path)) {
                    texts.entry(text.trim().replace("\r\n", "\n")).or_default().insert(label.clone());
                }
            }
        }
        let mut page = format!("{FOREWORD}{expressions}");
        let mut texts: Vec<(String, BTreeSet<String>)> = texts.into_iter().collect();
        texts.sort_by(|one, other| one.1.cmp(&other.1));
        for (text, labels) in texts {
            let labels: Vec<String> = labels.into_iter().collect();
            page.extend(["\n", &"-".repeat(79), "\n", &labels.join(", "), ":\n\n", &text, "\n"]);
        }
        Ok(page)
    }
}

fn url(id: &Id) -> String {
    format!("pkg:cargo/{}@{}", id.0, id.1)
}

/// Reads the tree that Cargo prints with depths: `1 name v1.2.3 (*)`.
fn packages(tree: &str) -> Result<BTreeMap<Id, BTreeSet<Id>>> {
    let mut packages: BTreeMap<Id, BTreeSet<Id>> = BTreeMap::new();
    let mut parents: Vec<Id> = Vec::new();
    for line in tree.lines() {
        let mut words = line.split_whitespace();
        let (Some(depth), Some(name), Some(version)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let depth: usize = depth.parse().map_err(|_| format!("`cargo tree` printed `{line}`"))?;
        let id = (name.to_owned(), version.trim_start_matches('v').to_owned());
        parents.truncate(depth);
        if let Some(parent) = parents.last() {
            packages.entry(parent.clone()).or_default().insert(id.clone());
        }
        packages.entry(id.clone()).or_default();
        parents.push(id);
    }
    Ok(packages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_becomes_edges() {
        let tree = "0 a v1.0.0 (/x)\n1 b v2.0.0\n2 c v3.0.0 (proc-macro)\n1 c v3.0.0 (proc-macro) (*)\n";
        let id = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        let (a, b, c) = (id("a", "1.0.0"), id("b", "2.0.0"), id("c", "3.0.0"));
        let expected = [
            (a, BTreeSet::from([b.clone(), c.clone()])),
            (b, BTreeSet::from([c.clone()])),
            (c, BTreeSet::new()),
        ];
        assert_eq!(packages(tree), Ok(BTreeMap::from(expected)));
    }
}
