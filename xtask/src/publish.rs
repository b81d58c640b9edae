//! Checks before a release: the packages as the registry gets them, and the public interface.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::Result;
use crate::command::Task;
use crate::suite::setup::{self, SEMVER_CHECKS};
use crate::workspace::Workspace;

/// The largest package for the registry, in bytes. The registry accepts 10 MiB.
const MAX_PACKAGE_BYTES: u64 = 2 << 20;

/// The time that one command may take: each package is compiled alone.
const LIMIT: Duration = Duration::from_mins(90);

/// Packages and compiles every published crate as the registry gets it, and builds the documentation of the façade as
/// docs.rs does. Uploads nothing.
pub fn check(root: &Path) -> Result<bool> {
    let workspace = Workspace::read(root)?;
    let published = || workspace.packages.iter().filter(|package| package.is_published);
    let mut packaging =
        Task::new("cargo", &["package", "--quiet", "--no-verify"]).directory(root).limit(LIMIT);
    for package in published() {
        packaging = packaging.argument("--package").argument(&package.name);
    }
    if !packaging.show()? {
        return Ok(false);
    }
    let mut is_good = true;
    for package in published() {
        let file = workspace.target.join(format!("package/{}-{}.crate", package.name, package.version));
        let size = fs::metadata(&file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        println!("{:22} {:5} KiB", package.name, size.len() >> 10);
        if size.len() > MAX_PACKAGE_BYTES {
            let most = MAX_PACKAGE_BYTES >> 10;
            println!("error: expected at most {most} KiB; name in `exclude` what users do not need");
            is_good = false;
        }
    }
    let compiles = Task::new("cargo", &["publish", "--workspace", "--dry-run"]).directory(root).limit(LIMIT);
    if !compiles.show()? {
        return Ok(false);
    }
    let documentation = Task::new("cargo", &["doc", "--package", "toolpost", "--all-features", "--no-deps"])
        .directory(root)
        .limit(LIMIT)
        // What docs.rs sets. Its compiler is a nightly one.
        .variable("RUSTDOCFLAGS", "--cfg docsrs -D warnings")
        .variable("RUSTC_BOOTSTRAP", "1");
    Ok(documentation.show()? && is_good)
}

/// Compares the public interface of the libraries with that of the baseline, by the rules of semantic versions.
pub fn semver(root: &Path) -> Result<bool> {
    setup::provide(root, &[SEMVER_CHECKS]);
    let workspace = Workspace::read(root)?;
    let baseline = baseline(&workspace)?;
    let mut task =
        Task::new(".dev/tools/bin/cargo-semver-checks", &["semver-checks", "--baseline-rev", &baseline]);
    for package in
        workspace.packages.iter().filter(|package| package.is_published && package.library.is_some())
    {
        task = task.argument("--package").argument(&package.name);
    }
    task.directory(root).limit(LIMIT).show()
}

/// The commit that `xtask/budgets.toml` names.
fn baseline(workspace: &Workspace) -> Result<String> {
    const FILE: &str = "xtask/budgets.toml";
    let text = workspace.text(FILE).ok_or_else(|| format!("cannot read {FILE}"))?;
    let table: toml::Table = text.parse().map_err(|error| format!("{FILE} is not TOML: {error}"))?;
    let commit = table.get("interface").and_then(|interface| interface.get("baseline")?.as_str());
    commit
        .map(str::to_owned)
        .ok_or_else(|| format!("{FILE} has no `baseline` in `[interface]`; name a commit"))
}
