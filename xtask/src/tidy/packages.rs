//! The rules on packages that are published: what the registry rejects, found without building them.

use std::fs;

use super::Complaint;
use super::tables::{LICENSES, PACKAGE_LIMIT_BYTES};
use crate::source::Source;
use crate::workspace::{DependencyKind, Package, Workspace};

pub(super) fn check(workspace: &Workspace, sources: &[Source]) -> Vec<Complaint> {
    let published = workspace.packages.iter().filter(|package| package.is_published);
    published.flat_map(|package| check_package(workspace, package, sources)).collect()
}

fn check_package(workspace: &Workspace, package: &Package, sources: &[Source]) -> Vec<Complaint> {
    let manifest = format!("{}/Cargo.toml", package.directory);
    let complain =
        |found: String, action: &str| Complaint::new("published-package", &manifest, found, action);
    let mut complaints = Vec::new();
    for field in &package.missing_fields {
        complaints.push(complain(format!("no `{field}`"), "add it, or set `publish = false`"));
    }
    for dependency in package.dependencies.iter().filter(|found| found.kind != DependencyKind::Development) {
        let name = &dependency.name;
        if !dependency.has_version {
            let action = "add the `version` that the registry gives to its users";
            complaints.push(complain(format!("`{name}` has a path and no version"), action));
        }
        if workspace.packages.iter().any(|other| other.name == *name && !other.is_published) {
            let action = "publish that package too, or move it to [dev-dependencies]";
            complaints.push(complain(format!("`{name}` is never published"), action));
        }
    }
    let directory = format!("{}/", package.directory);
    for license in LICENSES.iter().filter(|name| !workspace.files.contains(&format!("{directory}{name}"))) {
        complaints.push(complain(format!("no `{license}` beside it"), "link the file of the root"));
    }
    let sizes = workspace.below(&directory).filter_map(|path| fs::metadata(workspace.root.join(path)).ok());
    let bytes: u64 = sizes.map(|file| file.len()).sum();
    if bytes > PACKAGE_LIMIT_BYTES {
        let found = format!("{bytes} bytes of files, expected at most {PACKAGE_LIMIT_BYTES}");
        complaints.push(complain(found, "name in `exclude` what its users do not need"));
    }
    let own = sources.iter().filter(|source| source.path.starts_with(&format!("{directory}src/")));
    complaints.extend(own.flat_map(|source| includes(workspace, &directory, source)));
    complaints
}

/// The files that a source includes from outside of its package.
fn includes(workspace: &Workspace, directory: &str, source: &Source) -> Vec<Complaint> {
    let text = workspace.text(&source.path).unwrap_or_default();
    let mut complaints = Vec::new();
    for (index, (line, split)) in text.lines().zip(&source.lines).enumerate() {
        let includes =
            ["include_str!", "include_bytes!", "include!"].iter().any(|name| split.code.contains(name));
        let Some(path) = line.split('"').nth(1).filter(|_| includes && !split.in_test) else { continue };
        let depth = source.path[directory.len()..].matches('/').count();
        let climbs = path.split('/').take_while(|part| *part == "..").count();
        if climbs > depth {
            let found = format!("includes `{path}`, which is outside of the package");
            let action = "move the file into the package: the registry gets nothing else";
            complaints.push(Complaint::new("published-package", &source.path, found, action).at(index));
        }
    }
    complaints
}
