//! Checked reads of pinned files, and protection of pinned files from tools.

use std::io;
use std::path::{Path, PathBuf};

use toolpost_sandbox::{Grants, ProtectedPath};

use super::closure::{digest_of, has_references, named, of_targets};
use super::reference::{Named, Reference, settled};
use super::trust::Pins;
use super::trusted_code::TrustedCode;
use super::{Config, digest, paths};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::regular_file;
use crate::style::label;

/// Settings of every origin that name files which affect programs.
const DECISIVE: [&str; 4] = ["models.file", "models.ca_file", "egress_policy", "packages.certificate"];

impl Config {
    /// Whether a trusted project file references a path.
    pub(crate) fn pins(&self, path: &Path) -> bool {
        self.closure.contains_key(&settled(path))
    }

    /// Reads a file of a setting. If a project file references it, its content must match the pin.
    pub(crate) fn read_text(&self, what: &str, path: &Path, largest: u64) -> Result<String, Failure> {
        let wrong = |error: &io::Error| Failure::file(what, path, error);
        let text = regular_file::read_text(path, largest).map_err(|error| wrong(&error))?;
        self.compare(what, path, || Ok(digest::of_content(path, text.as_bytes())))?;
        Ok(text)
    }

    /// Checks a file or directory directly before another program reads it.
    pub(crate) fn check_pinned(&self, what: &str, path: &Path) -> Result<(), Failure> {
        self.compare(what, path, || {
            let reference = if path.is_dir() { Reference::Directory } else { Reference::File };
            digest_of(&reference(path.to_owned()))
        })
    }

    fn compare(
        &self,
        what: &str,
        path: &Path,
        now: impl FnOnce() -> Result<String, Failure>,
    ) -> Result<(), Failure> {
        let Some(pinned) = self.closure.get(&settled(path)) else { return Ok(()) };
        if *pinned == now()? {
            return Ok(());
        }
        let message = format!("{what} `{}` has changed since it was trusted", path.display());
        Err(Failure::new(Exit::Denied, "PERMISSION", message)
            .hint("Read it; then trust the file that references it again."))
    }

    /// The directories and files of Toolpost itself, which the sandbox hides: settings, state, data, cache, store and
    /// sockets.
    pub(crate) fn own_files(&self) -> Vec<ProtectedPath> {
        let store = self.settings.store.iter().flat_map(|path| {
            // The files of the database beside it.
            ["", "-wal", "-shm", "-journal"].map(|end| {
                let mut name = path.clone().into_os_string();
                name.push(end);
                PathBuf::from(name)
            })
        });
        let directories = paths::own().into_iter().map(|(_, path)| path).chain(paths::sessions());
        let all = directories.chain(store).flat_map(|path| [settled(&path), path]);
        all.filter(|path| path.is_absolute()).map(ProtectedPath::Own).collect()
    }

    /// Rejects a working directory in an own directory.
    pub(crate) fn check_directory(&self, directory: &Path) -> Result<(), Failure> {
        let real = settled(directory);
        match self.own_files().iter().find(|own| real.starts_with(own.path())) {
            None => Ok(()),
            Some(own) => {
                let shown = |path: &Path| label(&path.display().to_string());
                let message =
                    format!("the working directory `{}` is in `{}`", shown(directory), shown(own.path()));
                Err(Failure::usage(message)
                    .hint("Toolpost keeps its own files there; name another directory."))
            }
        }
    }

    /// All paths that no tool may change: own files, files that decide what runs, and directories with code of trusted
    /// programs; and `bin` of the home directory, which login shells add to `PATH` once it exists.
    ///
    /// The paths are trusted files with their references, files of settings, and project files of the working
    /// directory, trusted or not. The digest alone protects a program directory that contains the working
    /// directory.
    pub(crate) fn protected(&self, directory: Option<&Path>) -> Result<Vec<ProtectedPath>, Failure> {
        self.protected_with(directory, &[])
    }

    /// All paths that no tool may change, with the code of other programs.
    pub(crate) fn protected_with(
        &self,
        directory: Option<&Path>,
        programs: &[Named],
    ) -> Result<Vec<ProtectedPath>, Failure> {
        let here = settled(Path::new("."));
        directory.map_or(Ok(()), |directory| self.check_directory(directory))?;
        let directory = directory.map_or_else(|| here.clone(), settled);
        let own = self.own_files();
        let pins = Pins::load()?;
        let project = [&here, &directory].into_iter().flat_map(|directory| {
            [paths::PROJECT, ".env", ".mcp.json"].into_iter().map(move |name| directory.join(name))
        });
        let named = DECISIVE.iter().filter_map(|name| self.path(name));
        let lists = [paths::project(), paths::trust(), paths::pins()].into_iter().flatten();
        let mut all: Vec<ProtectedPath> = pins
            .paths()
            .map(Path::to_owned)
            .chain(project.chain(named).flat_map(|path| [settled(&path), path]))
            .chain(lists)
            .filter(|path| path.is_absolute() && !directory.starts_with(path))
            .map(ProtectedPath::Trusted)
            .chain(own)
            .chain(paths::home().map(|home| ProtectedPath::SearchPath(settled(&home.join("bin")))))
            .collect();
        // The path of a program may also be that of a directory above.
        let mut code = self.trusted_code(&pins, [here, directory.clone()]);
        code.add_all(programs);
        all.extend(code.into_paths().filter(|path| {
            matches!(path, ProtectedPath::Code { .. }) || !directory.starts_with(path.path())
        }));
        if let Some(home) = paths::home() {
            let config = |file| ProtectedPath::GitConfig { file, home: home.clone() };
            all.extend(paths::git_config().into_iter().map(config));
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// The code of programs that trusted files and the settings name.
    fn trusted_code(&self, pins: &Pins, starts: [PathBuf; 2]) -> TrustedCode {
        let mut code = TrustedCode::new(starts);
        for path in pins.paths().filter(|path| has_references(path)) {
            // A changed file is not trusted and starts nothing; the protection of its programs harms nothing.
            let content = digest::read(path).unwrap_or_default();
            code.add_all(&named(path, &content));
        }
        let targets = self.targets.iter().map(|(name, (target, _))| (target, self.grants.get(name).cloned()));
        for (target, grants) in targets {
            code.add_all(&of_targets(target, None, &grants.unwrap_or_default()));
        }
        for target in &self.settings.tools {
            code.add_all(&of_targets(target, None, &Grants::default()));
        }
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_pinned_file_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let [pinned, free] = ["way.toml", "free.toml"].map(|name| directory.path().join(name));
        std::fs::write(&pinned, "allow = []").unwrap();
        std::fs::write(&free, "a").unwrap();
        let mut config = Config::default();
        config.closure.insert(settled(&pinned), digest::of_content(&pinned, b"allow = []"));
        let read = |path: &Path| config.read_text("the policy", path, 100);
        assert_eq!(read(&pinned).unwrap(), "allow = []");
        // Between reading the settings and reading the policy.
        std::fs::write(&pinned, "allow = [\"evil.example\"]").unwrap();
        let refused = read(&pinned).unwrap_err();
        assert!(refused.exit == Exit::Denied && refused.message.contains("way.toml"), "{refused:?}");
        assert!(config.check_pinned("the policy", &pinned).is_err());
        std::fs::write(&free, "b").unwrap();
        assert_eq!(read(&free).unwrap(), "b");
    }
}
