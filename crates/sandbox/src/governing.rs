//! Repositories that govern a directory, and what their configuration makes git or Mercurial execute or obey in it.
//!
//! Governing are the repositories of the directory and of those above, with their modules, and those beneath. Only
//! files of the host are read, before changes of code are judged: code cannot change a configuration, because it is
//! protected itself.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::command_paths::command_paths;
use crate::git_config::{self, Setting};
use crate::git_settings::{HOOKS, ValueKind, kind};
use crate::host_file::{Content, Kind, Links, entries, lexical, path_from, read, read_line, visit};
use crate::mercurial;
use crate::protected::is_git_data_name;
use crate::{ProtectedPath, Protection};

/// The maximum size of a configuration file, in bytes.
pub(crate) const MAX_CONFIG: u64 = 4 << 20;
/// The maximum depth of includes, as in git.
const MAX_INCLUDES: usize = 10;
/// The maximum number of entries of a repository, its hooks or its modules.
const MAX_ENTRIES: usize = 2_000;
/// The maximum number of configuration files to read.
const MAX_FILES: usize = 4096;
/// The maximum number of settings in all files.
const MAX_SETTINGS: usize = 50_000;
/// The maximum depth of names in `.git/modules`.
const MAX_MODULE_DEPTH: usize = 8;
/// The maximum number of paths to protect.
const MAX_PATHS: usize = 10_000;

/// Collects the paths in a directory that its repositories name.
#[derive(Debug)]
pub(crate) struct Governing<'a> {
    directory: &'a Path,
    /// The user's home directory.
    home: Option<&'a Path>,
    /// The settings of the user's own configuration.
    global: Vec<Setting>,
    /// The work trees whose repository is known.
    tops: HashSet<PathBuf>,
    repositories: HashSet<PathBuf>,
    /// The command lines that were searched for paths, by work tree.
    commands: HashSet<(PathBuf, Vec<u8>)>,
    files: usize,
    links: Links,
    found: Vec<ProtectedPath>,
}

impl<'a> Governing<'a> {
    /// Reads the repositories of a directory and of those above. `global` has configuration files of the user with the
    /// home directory.
    pub(crate) fn above(directory: &'a Path, global: &[(&Path, &'a Path)]) -> Self {
        let mut governing = Self {
            directory,
            home: global.first().map(|(_, home)| *home),
            global: Vec::new(),
            tops: HashSet::new(),
            repositories: HashSet::new(),
            commands: HashSet::new(),
            files: 0,
            links: Links::beneath(directory),
            found: Vec::new(),
        };
        let mut settings = Vec::new();
        for (config, _) in global {
            governing.read(config, 0, &mut settings);
        }
        governing.global = settings;
        for top in directory.ancestors() {
            governing.git(top);
            governing.mercurial(top);
            // The directory may lie in a repository without a work tree.
            let has = |name: &str| top.join(name).symlink_metadata().is_ok();
            if has("HEAD") && has("config") {
                let names = governing.links_in(top).unwrap_or_default();
                governing.repository(top, None, &names);
            }
        }
        governing
    }

    /// The protected paths in the directory.
    pub(crate) fn into_found(self) -> Vec<ProtectedPath> {
        self.found
    }

    /// Reads a Mercurial repository of a work tree, if there is one.
    pub(crate) fn mercurial(&mut self, top: &Path) {
        for path in mercurial::named_paths(top) {
            self.protect(&path, top, Protection::Mercurial);
        }
    }

    /// Reads the `.git` of a work tree, if there is one.
    pub(crate) fn git(&mut self, top: &Path) {
        if self.tops.contains(top) {
            return;
        }
        let place = top.join(".git");
        if let Some(names) = self.links_in(&place) {
            self.repository(&place, Some(top), &names);
        } else if let Some(line) = read_line(&place)
            && let Some(target) = line.strip_prefix(b"gitdir:")
        {
            let git = self.links.real(&top.join(path_from(target.trim_ascii())));
            let names = self.links_in(&git).unwrap_or_default();
            self.repository(&git, Some(top), &names);
        }
    }

    /// Reads a repository with the names of its entries, and with the top of its work tree.
    fn repository(&mut self, git: &Path, top: Option<&Path>, names: &[OsString]) {
        if self.files > MAX_FILES || !self.repositories.insert(git.to_owned()) {
            return;
        }
        let has = |name: &str| names.iter().any(|own| own == name);
        let common = has("commondir").then(|| read_line(&git.join("commondir"))).flatten();
        let common = match common {
            None => git.to_owned(),
            Some(path) => {
                let common = self.links.real(&git.join(path_from(&path)));
                self.links_in(&common);
                common
            }
        };
        if common != git || has("hooks") {
            let hooks = common.join("hooks");
            self.linked_hooks(&hooks, &hooks, Protection::Repository);
        }
        let mut settings = self.global.clone();
        self.read(&common.join("config"), 0, &mut settings);
        if settings.iter().any(|setting| setting.key == "extensions.worktreeconfig") {
            self.read(&git.join("config.worktree"), 0, &mut settings);
        }
        // A module, or a repository elsewhere, names its work tree.
        let tree = settings.iter().rev().find(|setting| setting.key == "core.worktree");
        let tree = tree.and_then(|setting| setting.value.as_deref());
        let tree = tree.map(|tree| lexical(&git.join(path_from(tree))));
        let tops: Vec<&Path> = match (top, tree.as_deref()) {
            (None, None) => vec![git],
            (top, tree) => top.into_iter().chain(tree.filter(|tree| Some(*tree) != top)).collect(),
        };
        for top in tops {
            self.tops.insert(top.to_owned());
            for setting in &settings {
                self.judge(setting, git, top);
            }
        }
        if has("modules") {
            self.modules(&git.join("modules"), 0);
        }
    }

    /// Reads the repositories of submodules.
    fn modules(&mut self, directory: &Path, depth: usize) {
        for (name, kind) in entries(directory, MAX_ENTRIES) {
            if depth > MAX_MODULE_DEPTH || kind != Kind::Directory || self.files > MAX_FILES {
                continue;
            }
            let path = directory.join(name);
            let names = self.links_in(&path).unwrap_or_default();
            if names.iter().any(|name| name == "HEAD") {
                self.repository(&path, None, &names);
            } else {
                self.modules(&path, depth + 1);
            }
        }
    }

    /// Protects the targets of links in a repository, or in its hooks. Returns the names of all entries, and none if it
    /// is not a directory.
    fn links_in(&mut self, directory: &Path) -> Option<Vec<OsString>> {
        let mut names = Vec::new();
        visit(directory, MAX_ENTRIES, &mut |name, kind| {
            if kind == Kind::Link && !is_git_data_name(name) {
                self.protect(&directory.join(name), directory, Protection::Repository);
            }
            names.push(name.to_owned());
        })?;
        Some(names)
    }

    /// Protects the targets of linked hooks.
    fn linked_hooks(&mut self, directory: &Path, top: &Path, protection: Protection) {
        visit(directory, MAX_ENTRIES, &mut |name, kind| {
            if kind == Kind::Link {
                self.protect(&directory.join(name), top, protection);
            }
        });
    }

    /// Reads a configuration file, and protects and reads its includes.
    fn read(&mut self, file: &Path, depth: usize, settings: &mut Vec<Setting>) {
        self.files += 1;
        let all = match read(file, MAX_CONFIG) {
            Content::Unreadable => return,
            Content::Whole(content) if self.files <= MAX_FILES && settings.len() <= MAX_SETTINGS => {
                git_config::parse(&content)
            }
            Content::Whole(_) | Content::TooLarge => None,
        };
        let Some(all) = all else {
            // What the rest names is unknown.
            self.found.push(obeyed(self.directory.to_owned(), Protection::GitSetting));
            return;
        };
        for setting in all {
            let Some(kind) = kind(&setting.key, setting.subsection.as_deref()) else { continue };
            let beside = file.parent().unwrap_or(file);
            let included =
                setting.value.as_deref().filter(|_| kind == ValueKind::Include && depth < MAX_INCLUDES);
            match included.and_then(|value| self.resolve(value, beside)) {
                Some(path) => {
                    self.protect(&path, beside, Protection::GitSetting);
                    self.read(&path, depth + 1, settings);
                }
                None => settings.push(setting),
            }
        }
    }

    /// Protects what a setting names in a work tree.
    fn judge(&mut self, setting: &Setting, git: &Path, top: &Path) {
        let kind = kind(&setting.key, setting.subsection.as_deref());
        let Some((kind, value)) = kind.zip(setting.value.as_deref().filter(|value| !value.is_empty())) else {
            return;
        };
        match kind {
            ValueKind::Hooks => {
                // Hooks of a push run in the repository.
                for base in [top, git] {
                    if let Some(path) = self.resolve(value, base) {
                        self.protect_hooks(&path, top);
                    }
                }
            }
            ValueKind::Path => {
                if let Some(path) = self.resolve(value, top) {
                    self.protect(&path, top, Protection::GitSetting);
                }
            }
            ValueKind::Command => self.command(value, top),
            ValueKind::Alias => self.command(value.strip_prefix(b"!").unwrap_or(value), top),
            ValueKind::Helper => match value.strip_prefix(b"!") {
                Some(command) => self.command(command, top),
                None if value.starts_with(b"/") || value.starts_with(b"~") => self.command(value, top),
                // The end of a name: `git credential-store --file=x`.
                None => self.command(&[b"git-credential-".as_slice(), value].concat(), top),
            },
            ValueKind::Url => {
                if let Some(command) = value.strip_prefix(b"ext::") {
                    self.command(command, top);
                }
            }
            ValueKind::Include | ValueKind::WorkTree | ValueKind::WorktreeConfig => {}
        }
    }

    /// Protects the programs and files of a command line.
    fn command(&mut self, line: &[u8], top: &Path) {
        if !self.commands.insert((top.to_owned(), line.to_owned())) {
            return;
        }
        // Some programs are executed without a shell, and their path may have blanks.
        let whole = line.contains(&b'/').then(|| (self.resolve(line, top), true));
        let words = command_paths(line).into_iter().map(|found| {
            let base = found.directory.and_then(|directory| self.resolve(&directory, top));
            (self.resolve(&found.path, base.as_deref().unwrap_or(top)), found.is_certain)
        });
        let paths: Vec<_> = whole.into_iter().chain(words).collect();
        for (path, is_certain) in paths {
            let Some(path) = path else { continue };
            // A directory is data of the command: `eslint src`.
            let is_named = match path.metadata() {
                Ok(found) => !found.is_dir(),
                Err(_) => is_certain,
            };
            if is_named {
                self.protect(&path, top, Protection::GitProgram);
            }
        }
    }

    /// The absolute path of a value.
    fn resolve(&self, value: &[u8], base: &Path) -> Option<PathBuf> {
        let value = value.strip_prefix(b":(optional)").unwrap_or(value);
        let Some(rest) = value.strip_prefix(b"~") else { return Some(base.join(path_from(value))) };
        let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        let (user, below) = rest.split_at(end);
        let home = if user.is_empty() {
            self.home
        } else {
            // The home directory of another user has its name.
            self.directory.ancestors().find(|above| above.file_name() == Some(path_from(user).as_os_str()))
        };
        Some(home?.join(path_from(below.strip_prefix(b"/").unwrap_or(below))))
    }

    /// Protects a directory with hooks. In a directory that holds the work tree, only the hooks.
    fn protect_hooks(&mut self, path: &Path, top: &Path) {
        let real = self.links.real(path);
        if top.starts_with(&real) {
            for hook in HOOKS {
                self.protect(&path.join(hook), top, Protection::HooksPath);
            }
            return;
        }
        // Hooks of husky in `_` execute those of the directory above.
        let above = real.parent().filter(|above| real.file_name() == Some(OsStr::new("_")) && *above != top);
        if let Some(above) = above {
            self.protect(above, top, Protection::HooksPath);
        }
        self.protect(path, top, Protection::HooksPath);
        self.linked_hooks(&real, top, Protection::HooksPath);
    }

    /// Protects a path under the names that lie in the directory, unless it holds the whole work tree.
    fn protect(&mut self, path: &Path, top: &Path, protection: Protection) {
        for name in self.links.names_of(path) {
            let is_near = name.starts_with(self.directory) || self.directory.starts_with(&name);
            if !is_near || top.starts_with(&name) || self.found.len() > MAX_PATHS {
                continue;
            }
            self.found.push(obeyed(name, protection));
        }
    }
}

/// A path that host programs execute or obey.
pub(crate) fn obeyed(path: PathBuf, protection: Protection) -> ProtectedPath {
    ProtectedPath::Obeyed { path, protection }
}
