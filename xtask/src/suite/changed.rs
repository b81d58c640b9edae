//! The reach of a change: the packages whose files differ from a commit, and all packages that depend on those.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crate::Result;
use crate::command::Task;
use crate::workspace::{Workspace, has_extension};

/// Files that every package depends on.
const OF_ALL: &[&str] =
    &["Cargo.toml", "Cargo.lock", "clippy.toml", "rustfmt.toml", "rust-toolchain.toml", "deny.toml"];

/// Directories of which the same is true.
const DIRECTORIES_OF_ALL: &[&str] = &[".cargo/", ".config/", ".ci/"];

/// The rules of the tree look at every file.
const RULES: &str = "xtask";

/// The packages that a run of the tests covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// Every package.
    All,
    /// These packages.
    Packages(BTreeSet<String>),
}

/// The Python package.
const PYTHON: &str = "toolpost-python";

impl Selection {
    /// The reach of the files that differ from `commit`. Without a commit: from the merge base with the upstream branch,
    /// or from `HEAD` if the branch has no upstream.
    pub fn since(workspace: &Workspace, commit: Option<&str>) -> Result<Self> {
        let root = &workspace.root;
        let base = match commit {
            Some(commit) => commit.to_owned(),
            None => git(root, &["merge-base", "HEAD", "@{upstream}"])
                .map_or_else(|_| "HEAD".to_owned(), |text| text.trim().to_owned()),
        };
        let mut files = git(root, &["diff", "--name-only", "-z", "--no-renames", &base, "--"])?;
        files += &git(root, &["ls-files", "-z", "--others", "--exclude-standard"])?;
        let files: BTreeSet<&str> = files.split('\0').filter(|path| !path.is_empty()).collect();
        eprintln!("{} files differ from {base}", files.len());
        Ok(Self::reached(workspace, &files))
    }

    /// The packages that own or name one of `files`, and all that depend on those.
    pub fn reached(workspace: &Workspace, files: &BTreeSet<&str>) -> Self {
        let every = |path: &&str| {
            OF_ALL.contains(path) || DIRECTORIES_OF_ALL.iter().any(|directory| path.starts_with(directory))
        };
        if files.iter().any(every) {
            return Self::All;
        }
        let mut reached = BTreeSet::from([RULES.to_owned()]);
        for file in files {
            match owner(workspace, file) {
                Some(package) => {
                    reached.insert(package.to_owned());
                }
                None => reached.extend(named_by(workspace, file)),
            }
        }
        loop {
            let before = reached.len();
            for package in &workspace.packages {
                if package.dependencies.iter().any(|dependency| reached.contains(&dependency.name)) {
                    reached.insert(package.name.clone());
                }
            }
            if reached.len() == before {
                return Self::Packages(reached);
            }
        }
    }

    /// Whether a package is covered.
    pub fn has(&self, package: &str) -> bool {
        match self {
            Self::All => true,
            Self::Packages(packages) => packages.contains(package),
        }
    }

    /// The options of Cargo that name the packages.
    pub fn options(&self) -> Vec<&str> {
        match self {
            Self::All => vec!["--workspace"],
            Self::Packages(packages) => packages.iter().flat_map(|name| ["--package", name]).collect(),
        }
    }

    /// The options for tests in Rust. The Python package has none, and needs features of the façade that would reach its
    /// tests as well.
    pub fn tested(&self) -> Vec<&str> {
        match self {
            Self::All => vec!["--workspace", "--exclude", PYTHON],
            Self::Packages(packages) => {
                packages.iter().filter(|name| *name != PYTHON).flat_map(|name| ["--package", name]).collect()
            }
        }
    }

    /// A variant without packages that have no library.
    #[must_use]
    pub fn libraries(&self, workspace: &Workspace) -> Self {
        match self {
            Self::All => Self::All,
            Self::Packages(packages) => Self::Packages(
                workspace
                    .packages
                    .iter()
                    .filter(|package| package.library.is_some() && packages.contains(&package.name))
                    .map(|package| package.name.clone())
                    .collect(),
            ),
        }
    }
}

/// The package that a file belongs to: the one with the longest directory.
fn owner<'a>(workspace: &'a Workspace, file: &str) -> Option<&'a str> {
    workspace
        .packages
        .iter()
        .filter(|package| {
            file.strip_prefix(package.directory.as_str()).is_some_and(|rest| rest.starts_with('/'))
        })
        .max_by_key(|package| package.directory.len())
        .map(|package| package.name.as_str())
}

/// The packages whose sources name a file that belongs to no package, such as a page of `docs/`.
fn named_by(workspace: &Workspace, file: &str) -> BTreeSet<String> {
    workspace
        .files
        .iter()
        .filter(|path| has_extension(path, "rs"))
        .filter(|path| workspace.text(path).is_some_and(|text| text.contains(file)))
        .filter_map(|path| owner(workspace, path).map(str::to_owned))
        .collect()
}

fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    let task = Task::new("git", arguments).directory(root).limit(Duration::from_mins(1));
    let captured = task.capture()?;
    if captured.success {
        Ok(captured.text)
    } else {
        Err(format!("`{}` failed: {}", task.line(), captured.errors.trim()))
    }
}
