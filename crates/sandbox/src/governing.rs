//! Repositories that govern a directory, and what their configuration makes git or Mercurial execute or obey in it.
//!
//! Governing are the repositories of the directory and of those above, with their modules, and those beneath. Only
//! files of the host are read, before changes of code are judged: code cannot change a configuration, because it is
//! protected itself.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::command_paths::command_paths;
use crate::git_config::{self, Setting};
use crate::git_settings::{HOOKS, ValueKind, kind};
use crate::host_file::{Content, Directory, Kind, Links, lexical, path_from, read, read_line};
use crate::mercurial;
use crate::protected::is_git_data_name;
use crate::{ProtectedPath, Protection};

/// The entries of a repository that decide what is read.
const ENTRIES: [&str; 4] = ["HEAD", "commondir", "hooks", "modules"];
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
                governing.repository_at(top, None);
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
        if self.repository_at(&place, Some(top)) {
            return;
        }
        if let Some(line) = read_line(&place)
            && let Some(target) = line.strip_prefix(b"gitdir:")
        {
            let git = self.links.real(&top.join(path_from(target.trim_ascii())));
            self.repository_at(&git, Some(top));
        }
    }

    /// Reads a repository, with the top of its work tree. Returns whether a directory is there.
    fn repository_at(&mut self, git: &Path, top: Option<&Path>) -> bool {
        let Some(directory) = Directory::open(git) else { return false };
        let names = self.links_in(&directory, git);
        self.repository(git, top, &directory, &names);
        true
    }

    /// Reads a repository with the names of its entries, and with the top of its work tree.
    fn repository(&mut self, git: &Path, top: Option<&Path>, directory: &Directory, names: &[&str]) {
        if self.files > MAX_FILES || !self.repositories.insert(git.to_owned()) {
            return;
        }
        let has = |name: &str| names.contains(&name);
        let common = has("commondir").then(|| directory.read_line("commondir")).flatten();
        let common = common.map(|path| self.links.real(&git.join(path_from(&path))));
        let opened = common.as_deref().and_then(Directory::open);
        let mut settings = self.global.clone();
        match (&common, &opened) {
            (None, _) => self.shared(git, directory, has("hooks"), &mut settings),
            (Some(common), Some(directory)) => {
                self.links_in(directory, common);
                self.shared(common, directory, true, &mut settings);
            }
            (Some(common), None) => self.read(&common.join("config"), 0, &mut settings),
        }
        if settings.iter().any(|setting| setting.key == "extensions.worktreeconfig") {
            let content = directory.read("config.worktree", MAX_CONFIG);
            self.parse(content, &git.join("config.worktree"), 0, &mut settings);
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
        if has("modules")
            && let Some(modules) = directory.open_in(OsStr::new("modules"))
        {
            self.modules(&git.join("modules"), &modules, 0);
        }
    }

    /// Reads what all work trees of a repository share: hooks and configuration.
    fn shared(&mut self, git: &Path, directory: &Directory, has_hooks: bool, settings: &mut Vec<Setting>) {
        if has_hooks && let Some(hooks) = directory.open_in(OsStr::new("hooks")) {
            let path = git.join("hooks");
            self.linked_hooks(&hooks, &path, &path, Protection::Repository);
        }
        self.parse(directory.read("config", MAX_CONFIG), &git.join("config"), 0, settings);
    }

    /// Reads the repositories of submodules.
    fn modules(&mut self, path: &Path, directory: &Directory, depth: usize) {
        for (name, kind) in directory.entries(MAX_ENTRIES) {
            if depth > MAX_MODULE_DEPTH || kind != Kind::Directory || self.files > MAX_FILES {
                continue;
            }
            let Some(module) = directory.open_in(&name) else { continue };
            let path = path.join(name);
            let names = self.links_in(&module, &path);
            if names.contains(&"HEAD") {
                self.repository(&path, None, &module, &names);
            } else if let Some(module) = directory.open_in(path.file_name().unwrap_or_default()) {
                self.modules(&path, &module, depth + 1);
            }
        }
    }

    /// Protects the targets of links in a repository. Returns those of [`ENTRIES`] that it has.
    fn links_in(&mut self, directory: &Directory, path: &Path) -> Vec<&'static str> {
        let mut names = Vec::with_capacity(ENTRIES.len());
        directory.visit(MAX_ENTRIES, &mut |name, kind| {
            if kind == Kind::Link && !is_git_data_name(name) {
                self.protect(&path.join(name), path, Protection::Repository);
            }
            names.extend(ENTRIES.iter().find(|known| name == **known));
        });
        names
    }

    /// Protects the targets of linked hooks.
    fn linked_hooks(&mut self, directory: &Directory, path: &Path, top: &Path, protection: Protection) {
        directory.visit(MAX_ENTRIES, &mut |name, kind| {
            if kind == Kind::Link {
                self.protect(&path.join(name), top, protection);
            }
        });
    }

    /// Reads a configuration file, and protects and reads its includes.
    fn read(&mut self, file: &Path, depth: usize, settings: &mut Vec<Setting>) {
        self.parse(read(file, MAX_CONFIG), file, depth, settings);
    }

    fn parse(&mut self, content: Content, file: &Path, depth: usize, settings: &mut Vec<Setting>) {
        self.files += 1;
        let all = match content {
            Content::Unreadable => return,
            Content::Whole(content) if self.files <= MAX_FILES && settings.len() <= MAX_SETTINGS => {
                git_config::parse(&content, |key, subsection| kind(key, subsection).is_some())
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
        if let Some(directory) = Directory::open(&real) {
            self.linked_hooks(&directory, &real, top, Protection::HooksPath);
        }
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
