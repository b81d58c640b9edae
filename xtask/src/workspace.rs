//! The subject of the rules: the files of the checkout and the packages that `cargo metadata` names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::Result;
use crate::command::Task;
use crate::source::Source;

/// The largest file that is read as text, in bytes.
const TEXT_LIMIT_BYTES: u64 = 4 << 20;

/// Directories that are never part of the tree, where Git is not there to say so.
const NOT_OURS: &[&str] = &[".git", "target", ".dev", "node_modules"];

/// The fields of a manifest without which the registry rejects a package, and the link to its code.
const REQUIRED_FIELDS: &[&str] = &["description", "license", "repository"];

/// One dependency of a package, as its manifest states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// The package that it names (not what the manifest renames it to).
    pub name: String,
    /// When it is needed.
    pub kind: DependencyKind,
    /// Whether the manifest states a version beside the path or instead of it.
    pub has_version: bool,
}

/// When a dependency is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DependencyKind {
    /// By the library or binary itself.
    Normal,
    /// By its build script.
    Build,
    /// By its tests, examples and benches.
    Development,
}

/// A package of the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its name, for example `toolpost-core`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its directory below the root, for example `crates/core`.
    pub directory: String,
    /// Its direct dependencies.
    pub dependencies: Vec<Dependency>,
    /// The path of its library's root file, if it has a library.
    pub library: Option<String>,
    /// The paths of the root files of its binaries.
    pub binaries: Vec<String>,
    /// Whether a registry gets it.
    pub is_published: bool,
    /// The fields that the registry requires and the manifest does not have.
    pub missing_fields: Vec<&'static str>,
}

/// The checkout.
#[derive(Debug)]
pub struct Workspace {
    /// Its directory.
    pub root: PathBuf,
    /// The paths of its files below the root, sorted: tracked ones and new ones that Git does not ignore.
    pub files: BTreeSet<String>,
    /// Its packages.
    pub packages: Vec<Package>,
    /// Where Cargo puts what it builds.
    pub target: PathBuf,
}

impl Workspace {
    /// Reads the workspace at `root`. Fails where `cargo metadata` does.
    pub fn read(root: &Path) -> Result<Self> {
        let files = if root.join(".git").exists() { tracked(root)? } else { walk(root)? };
        let metadata = Task::new("cargo", &["metadata", "--no-deps", "--format-version", "1", "--offline"])
            .directory(root)
            .limit(Duration::from_mins(2))
            .capture()?;
        if !metadata.success {
            return Err(format!("`cargo metadata` failed in {}: {}", root.display(), metadata.errors.trim()));
        }
        let metadata: Value = serde_json::from_str(&metadata.text)
            .map_err(|error| format!("`cargo metadata` printed no JSON: {error}"))?;
        let real_root = metadata["workspace_root"].as_str().map_or_else(|| root.to_owned(), PathBuf::from);
        let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(Self {
            root: root.to_owned(),
            files,
            packages: packages.iter().map(|package| self::package(&real_root, package)).collect(),
            target: metadata["target_directory"].as_str().map_or_else(|| root.join("target"), PathBuf::from),
        })
    }

    /// The text of a file, or nothing if it is not UTF-8 text of at most 4 MiB.
    pub fn text(&self, path: &str) -> Option<String> {
        let path = self.root.join(path);
        if fs::metadata(&path).ok()?.len() > TEXT_LIMIT_BYTES {
            return None;
        }
        fs::read_to_string(path).ok()
    }

    /// Every Rust file, split.
    pub fn sources(&self) -> Vec<Source> {
        self.files
            .iter()
            .filter(|path| has_extension(path, "rs"))
            .filter_map(|path| Some(Source::new(path, &self.text(path)?)))
            .collect()
    }

    /// The paths of the files below `directory`, which ends with `/`.
    pub fn below<'a>(&'a self, directory: &'a str) -> impl Iterator<Item = &'a str> {
        self.files.iter().map(String::as_str).filter(move |path| path.starts_with(directory))
    }
}

/// Whether the file's name ends with a dot and `extension`.
pub fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|found| found == extension)
}

fn package(root: &Path, package: &Value) -> Package {
    let relative = |value: &Value| -> String {
        let path = Path::new(value.as_str().unwrap_or_default());
        path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/")
    };
    let has_kind = |target: &Value, wanted: &[&str]| {
        target["kind"]
            .as_array()
            .is_some_and(|kinds| kinds.iter().any(|kind| wanted.contains(&kind.as_str().unwrap_or_default())))
    };
    let targets = package["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
    let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    let manifest = relative(&package["manifest_path"]);
    Package {
        name: package["name"].as_str().unwrap_or_default().to_owned(),
        version: package["version"].as_str().unwrap_or_default().to_owned(),
        directory: manifest.trim_end_matches("Cargo.toml").trim_end_matches('/').to_owned(),
        dependencies: dependencies
            .iter()
            .map(|dependency| Dependency {
                name: dependency["name"].as_str().unwrap_or_default().to_owned(),
                kind: match dependency["kind"].as_str() {
                    Some("dev") => DependencyKind::Development,
                    Some("build") => DependencyKind::Build,
                    _ => DependencyKind::Normal,
                },
                has_version: dependency["req"] != "*",
            })
            .collect(),
        library: targets
            .iter()
            .find(|target| has_kind(target, &["lib", "rlib", "proc-macro", "cdylib", "staticlib"]))
            .map(|target| relative(&target["src_path"])),
        binaries: targets
            .iter()
            .filter(|target| has_kind(target, &["bin"]))
            .map(|target| relative(&target["src_path"]))
            .collect(),
        // An empty list names no registry.
        is_published: package["publish"].as_array().is_none_or(|registries| !registries.is_empty()),
        missing_fields: REQUIRED_FIELDS.iter().copied().filter(|field| package[*field].is_null()).collect(),
    }
}

/// The files that Git tracks, and new ones that are not ignored.
fn tracked(root: &Path) -> Result<BTreeSet<String>> {
    let listing = Task::new("git", &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .directory(root)
        .limit(Duration::from_mins(1))
        .capture()?;
    if !listing.success {
        return Err(format!("`git ls-files` failed in {}: {}", root.display(), listing.errors.trim()));
    }
    // A file that is deleted but still in the index has nothing to say.
    Ok(listing.text.split('\0').filter(|path| root.join(path).is_file()).map(str::to_owned).collect())
}

/// Every file of a copy without Git, a release archive for example.
fn walk(root: &Path) -> Result<BTreeSet<String>> {
    let mut files = BTreeSet::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = fs::read_dir(&directory)
            .map_err(|error| format!("cannot list {}: {error}", directory.display()))?;
        for entry in entries {
            let entry = entry.map_err(|error| format!("cannot list {}: {error}", directory.display()))?;
            let kind = entry.file_type().map_err(|error| format!("{}: {error}", entry.path().display()))?;
            if kind.is_dir() && !NOT_OURS.iter().any(|name| entry.file_name() == *name) {
                directories.push(entry.path());
            } else if kind.is_file() {
                let path = entry.path();
                let path = path.strip_prefix(root).unwrap_or(&path);
                files.insert(path.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    Ok(files)
}
