//! A small tidy workspace in a temporary directory, for rows that break one rule each.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use xtask::suite::examples::EXAMPLES;
use xtask::tidy;
use xtask::tidy::tables::LICENSES;
use xtask::workspace::Workspace;

const CORE_ROOT: &str =
    "//! The contracts.\n//!\n//! # Invariants\n//!\n//! - None.\n\n#![forbid(unsafe_code)]\n";

pub(crate) struct MadeTree {
    directory: TempDir,
}

impl MadeTree {
    /// A tree that no rule complains of: the packages core and sandbox, a decision record, a budget, the examples.
    pub(crate) fn new() -> Self {
        let tree = Self { directory: tempfile::tempdir().unwrap() };
        tree.write(
            "Cargo.toml",
            "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\nexclude = [\"crates/mcp\", \"crates/toolpost\"]\n",
        );
        tree.write(
            "Cargo.lock",
            "version = 4\n\n[[package]]\nname = \"toolpost-core\"\nversion = \"0.1.0\"\n",
        );
        tree.write("xtask/budgets.toml", "[lockfile]\npackages = 2\n");
        tree.package("crates/core", "toolpost-core", "");
        tree.write("crates/core/src/lib.rs", CORE_ROOT);
        tree.package("crates/sandbox", "toolpost-sandbox", "");
        tree.write("crates/sandbox/src/lib.rs", &CORE_ROOT.replace("#![forbid(unsafe_code)]\n", ""));
        tree.write("docs/decisions/0001-first.md", "# First\n\n## What\n\n## Why\n\n## What was tried\n");
        for example in EXAMPLES {
            match example.path.strip_suffix(".rs") {
                Some(_) => tree.write(example.path, "//! An example.\n\nfn main() {}\n"),
                None => tree.write(&format!("{}/README.md", example.path), "# An example\n"),
            }
        }
        tree
    }

    /// Writes a file.
    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Writes the manifest of a package, with more lines at its end.
    pub(crate) fn package(&self, directory: &str, name: &str, more: &str) {
        let manifest = format!(
            "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\npublish = false\n\n[lints]\nworkspace = true\n\n{more}"
        );
        // The lints that are inherited must be there.
        let root = fs::read_to_string(self.root().join("Cargo.toml")).unwrap();
        if !root.contains("workspace.lints") {
            self.write("Cargo.toml", &format!("{root}\n[workspace.lints.rust]\nmissing_docs = \"warn\"\n"));
        }
        self.write(&format!("{directory}/Cargo.toml"), &manifest);
    }

    /// Writes the manifest and the licenses of a package for the registry, with more lines at its end.
    pub(crate) fn published(&self, directory: &str, name: &str, more: &str) {
        self.package(directory, name, more);
        let path = format!("{directory}/Cargo.toml");
        let fields = "description = \"D\"\nlicense = \"MIT\"\nrepository = \"https://example.com\"\n";
        let manifest = fs::read_to_string(self.root().join(&path)).unwrap();
        self.write(&path, &manifest.replace("publish = false\n", fields));
        for license in LICENSES {
            self.write(&format!("{directory}/{license}"), "");
        }
    }

    /// Adds a file to the library of `crates/core` as the module `more`.
    pub(crate) fn module(&self, text: &str) {
        self.write("crates/core/src/lib.rs", &format!("{CORE_ROOT}mod more;\n"));
        self.write("crates/core/src/more.rs", text);
    }

    /// Its directory.
    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    /// The complaints, as a reader sees them.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let workspace = Workspace::read(self.root()).unwrap();
        tidy::check(&workspace).unwrap().iter().map(ToString::to_string).collect()
    }

    /// Asserts that there is one complaint, that it begins so, and that it says what to do.
    pub(crate) fn complains(&self, beginning: &str) {
        let complaints = self.complaints();
        assert_eq!(complaints.len(), 1, "expected `{beginning}…`, found {complaints:#?}");
        assert!(complaints[0].starts_with(beginning), "expected `{beginning}…`, found `{}`", complaints[0]);
        assert!(complaints[0].contains("; "), "no action in `{}`", complaints[0]);
    }
}
