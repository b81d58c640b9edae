//! Directories from which programs of trusted files load code.
//!
//! A trusted program imports modules beside it, which no pin covers. Code in a sandbox must not change them: it would
//! get the grants of the program. Each rule here errs to more directories: a denied change costs less than a grant.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use toolpost_sandbox::{Loader, ProtectedPath};

use super::program_kind::{is_runner, library_directories, of_extension, of_interpreter, of_program};
use super::reference::{Command, Named, is_granted, is_system, own_directories, settled};
use crate::launcher;
use crate::regular_file;

/// The maximum number of entries to inspect for links beneath a directory with code.
const MAX_ENTRIES: usize = 4096;
/// The maximum size of a file of an environment that names directories, in bytes.
const MAX_FILE: u64 = 256 << 10;
/// Files that mark the directory of a program's package.
const PACKAGES: [(&str, Loader); 3] =
    [("package.json", Loader::Node), ("composer.json", Loader::Php), ("Gemfile", Loader::Ruby)];
/// Parents of programs that load code from directories beside the parent.
const PROGRAMS: [&str; 5] = ["bin", "sbin", "exe", "scripts", "libexec"];
const BESIDE: [&str; 6] = ["lib", "lib32", "lib64", "libexec", "vendor", "src"];
/// Options of interpreters whose values name code.
const CODE_OPTIONS: [&str; 13] = [
    "-I",
    "-r",
    "--require",
    "--import",
    "--loader",
    "--app-dir",
    "-cp",
    "-classpath",
    "--class-path",
    "-p",
    "--module-path",
    "-jar",
    "--rcfile",
];
/// Options without a script: a module or code, which imports from the working directory.
const INLINE: [&str; 7] = ["-", "--eval", "--print", "-m", "-c", "-e", "-E"];
/// Variables that name code, and its language.
const VARIABLES: [(&str, Loader); 18] = [
    ("PYTHONPATH", Loader::Python),
    ("PYTHONHOME", Loader::Any),
    ("PYTHONSTARTUP", Loader::Python),
    ("VIRTUAL_ENV", Loader::Any),
    ("NODE_PATH", Loader::Node),
    ("NODE_OPTIONS", Loader::Node),
    ("RUBYLIB", Loader::Ruby),
    ("RUBYOPT", Loader::Ruby),
    ("GEM_PATH", Loader::Any),
    ("GEM_HOME", Loader::Any),
    ("PERL5LIB", Loader::Perl),
    ("PERL5OPT", Loader::Perl),
    ("PHPRC", Loader::Any),
    ("CLASSPATH", Loader::Java),
    ("LD_LIBRARY_PATH", Loader::Native),
    ("LD_PRELOAD", Loader::Native),
    ("BASH_ENV", Loader::Shell),
    ("PATH", Loader::Any),
];

/// Collects the protected paths of programs.
pub(super) struct TrustedCode {
    /// The directories of the command, in which programs without a named one work.
    starts: Vec<PathBuf>,
    search: OsString,
    /// Whether the program at hand has a grant.
    is_granted: bool,
    found: BTreeSet<ProtectedPath>,
}

impl TrustedCode {
    pub(super) fn new(starts: impl IntoIterator<Item = PathBuf>) -> Self {
        let starts: BTreeSet<PathBuf> = starts.into_iter().collect();
        Self {
            starts: starts.into_iter().collect(),
            search: launcher::search_path().unwrap_or_default(),
            is_granted: false,
            found: BTreeSet::new(),
        }
    }

    pub(super) fn into_paths(self) -> impl Iterator<Item = ProtectedPath> {
        self.found.into_iter()
    }

    /// Adds what programs of trusted files load.
    pub(super) fn add_all(&mut self, programs: &[Named]) {
        for program in programs {
            self.add(program);
        }
    }

    /// Adds what the program of a trusted file loads.
    ///
    /// Without a grant, only the directories of programs in languages with modules count: a shell script, or a build
    /// tool that works in a directory, starts any file of it.
    fn add(&mut self, named: &Named) {
        match named {
            Named::Reference(_) => {}
            Named::Program { path, grants } => {
                self.is_granted = is_granted(grants);
                let loader = self.file(path, None);
                if let (Some(directory), Some(loader)) =
                    (&grants.workdir, loader.filter(|own| loads_from_start(*own)))
                {
                    self.directory(directory, loader);
                }
            }
            Named::Command(command) => {
                self.is_granted = command.is_granted;
                let named = command.named.as_ref().or(command.default.as_ref());
                let starts = named.map_or_else(|| self.starts.clone(), |named| vec![named.clone()]);
                for start in starts {
                    self.command(command, &settled(&start));
                }
            }
        }
    }

    fn command(&mut self, command: &Command, start: &Path) {
        for (name, value) in &command.variables {
            self.variable(name, value, start);
        }
        let words: Vec<OsString> = command.words.iter().map(OsString::from).collect();
        if is_project_launcher(&command.words) {
            // An environment nearer than the present one precedes it.
            for directory in
                start.ancestors().chain(self.starts.clone().iter().flat_map(|one| one.ancestors()))
            {
                self.code(directory.join(".venv"), Loader::Any);
            }
        }
        for directory in std::iter::once(start.to_owned()).chain(self.starts.clone()) {
            let resolved = launcher::resolve(words.clone(), &directory).unwrap_or_else(|_| words.clone());
            let resolved: Vec<String> =
                resolved.iter().map(|word| word.to_string_lossy().into_owned()).collect();
            self.words(&resolved, start);
            if resolved == command.words {
                break;
            }
        }
    }

    /// Adds the code that a variable names.
    fn variable(&mut self, name: &str, value: &str, start: &Path) {
        let Some((_, loader)) = VARIABLES.iter().find(|(known, _)| *known == name) else { return };
        for path in value.split([':', ' ', '=']).filter(|path| !path.is_empty()) {
            self.path(&start.join(path), *loader);
        }
    }

    /// Adds the program, the script and the directories that the words of a command name.
    fn words(&mut self, words: &[String], start: &Path) {
        let mut language = None;
        let mut has_script = false;
        let mut is_inline = false;
        let mut bases = vec![start.to_owned()];
        for (index, word) in words.iter().enumerate() {
            let name = word.rsplit('/').next().unwrap_or(word);
            let previous = index.checked_sub(1).and_then(|index| words.get(index)).map_or("", String::as_str);
            let is_option = index > 0 && word.starts_with('-');
            let names_code = CODE_OPTIONS.contains(&previous);
            if !has_script && !is_option {
                language = language.or_else(|| of_interpreter(name));
                is_inline |= is_runner(name) || index > 0 && ["npx", "uvx", "uv"].contains(&name);
                if is_runner(name) {
                    language = Some(Loader::Shell);
                }
            }
            if !has_script && is_option && is_code(word) {
                is_inline = true;
            }
            let is_interpreter = !has_script && of_interpreter(name).is_some();
            if !word.contains('/') && (index == 0 || is_interpreter) {
                self.installed(word);
                continue;
            }
            if let Some((name, value)) = word.split_once('=').filter(|_| !is_option) {
                // `env` sets a variable.
                self.variable(name, value, start);
            }
            let text = match word.split_once('=') {
                Some((_, value)) if is_option => value,
                _ if is_option => word.strip_prefix("-I").unwrap_or_default(),
                _ => word.as_str(),
            };
            for part in std::iter::once(text).chain(text.split(':').filter(|_| text.contains(':'))) {
                let Some(path) = find(part, &bases) else { continue };
                if path.is_dir() {
                    if language.is_some() && (!has_script || names_code || is_option) {
                        self.directory(&path, language.unwrap_or(Loader::Any));
                        has_script |= !is_option && !names_code && !is_inline;
                    }
                    bases.push(path);
                    continue;
                }
                let is_script = language.is_some() && !has_script && !is_option && !is_inline;
                let hint = of_extension(&path).or(language.filter(|_| is_script));
                if index == 0 || hint.is_some() && (path.exists() || is_script && looks_like_path(part)) {
                    let loader = self.file(&path, hint);
                    if !names_code && !is_option {
                        has_script |= index > 0;
                        // A program that is a script starts its own code.
                        language = language.or(loader);
                        has_script |= index == 0 && of_interpreter(name).is_none();
                    }
                }
            }
        }
        if let Some(language) = language
            && self.is_granted
            && (!has_script || is_inline || loads_from_start(language))
        {
            self.directory(start, language);
        }
    }

    /// Adds a program of the search path outside the system directories, such as that of an active environment.
    fn installed(&mut self, name: &str) {
        let mut candidates = std::env::split_paths(&self.search).map(|directory| directory.join(name));
        if let Some(path) = candidates.find(|path| path.is_file())
            && !is_system(&path)
        {
            self.file(&path, None);
        }
    }

    /// Adds a file or a directory with code.
    fn path(&mut self, path: &Path, loader: Loader) {
        if path.is_file() {
            self.file(path, Some(loader));
        } else {
            self.directory(path, loader);
        }
    }

    /// Adds a program and what it loads; returns its language.
    fn file(&mut self, path: &Path, hint: Option<Loader>) -> Option<Loader> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let kind = of_program(&path);
        let loader =
            hint.or_else(|| kind.as_ref().map(|(loader, _)| *loader)).or_else(|| of_extension(&path));
        for path in BTreeSet::from([path.clone(), settled(&path)]) {
            if is_system(&path) {
                continue;
            }
            self.found.insert(ProtectedPath::Trusted(path.clone()));
            let has_modules =
                |loader: &Loader| !matches!(loader, Loader::Shell | Loader::Native | Loader::Any);
            let counted = loader.filter(|loader| self.is_granted || has_modules(loader));
            if let (Some(loader), Some(parent)) = (counted, path.parent()) {
                self.directory(parent, loader);
                self.around(&path, loader);
            }
        }
        // The first line of a script names the interpreter, which may be one of an environment.
        let interpreter = kind.iter().flat_map(|(_, words)| words).find(|word| !word.ends_with("/env"));
        match interpreter.map(Path::new) {
            Some(own) if own.is_absolute() && !is_system(own) && own != path => {
                self.file(own, None);
            }
            Some(own) if own.is_relative() => self.installed(&own.to_string_lossy()),
            _ => {}
        }
        loader
    }

    /// Adds directories beside and above the directory of a program.
    fn around(&mut self, program: &Path, loader: Loader) {
        for environment in own_directories(program) {
            if environment.join("pyvenv.cfg").is_file() {
                self.environment(&environment);
            }
        }
        let above = || program.ancestors().skip(1);
        let marks = PACKAGES.iter().filter(|(_, of)| *of == loader);
        for package in marks.filter_map(|(mark, _)| above().find(|directory| directory.join(mark).is_file()))
        {
            self.directory(package, loader);
        }
        if loader == Loader::Native {
            for library in library_directories(program) {
                self.code(library, loader);
            }
        }
        if loader == Loader::Node {
            for directory in above() {
                self.directory(&directory.join("node_modules"), Loader::Any);
            }
        }
        let parent = program.parent().filter(|parent| PROGRAMS.iter().any(|name| parent.ends_with(name)));
        for name in
            parent.and_then(Path::parent).iter().flat_map(|prefix| BESIDE.map(|name| prefix.join(name)))
        {
            self.code(name, loader);
        }
    }

    /// Adds a Python environment, and the directories that its files name.
    fn environment(&mut self, environment: &Path) {
        self.code(environment.to_owned(), Loader::Any);
        let entries =
            |directory: &Path| directory.read_dir().into_iter().flatten().take(MAX_ENTRIES).flatten();
        let libraries = ["lib", "lib64"].into_iter().flat_map(|name| entries(&environment.join(name)));
        for packages in libraries.map(|library| library.path().join("site-packages")) {
            for file in entries(&packages).map(|entry| entry.path()) {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                let is_finder = name.starts_with("__editable__") && name.ends_with(".py");
                if !is_finder && !name.ends_with(".pth") && !name.ends_with(".egg-link") {
                    continue;
                }
                let text = regular_file::read_text(&file, MAX_FILE).unwrap_or_default();
                // Lines of paths, and quoted paths of a finder.
                for part in text.split(['\n', '\'', '"']).map(str::trim) {
                    let path = packages.join(part);
                    if (path != packages && (!is_finder || Path::new(part).is_absolute())) && path.exists() {
                        self.path(&path, Loader::Python);
                    }
                }
            }
        }
    }

    /// Adds a directory with code, and where links in it lead.
    fn directory(&mut self, directory: &Path, loader: Loader) {
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        for directory in BTreeSet::from([settled(&directory), directory]) {
            if !self.code(directory.clone(), loader) {
                continue;
            }
            let near = |start: &PathBuf| directory.starts_with(start) || start.starts_with(&directory);
            if self.starts.iter().any(near) {
                self.links(&directory, loader);
            }
        }
    }

    /// Adds one directory with the links of its path; false if it is known or belongs to the system.
    fn code(&mut self, directory: PathBuf, loader: Loader) -> bool {
        if is_system(&directory) || !directory.is_absolute() {
            return false;
        }
        let mut real = PathBuf::from("/");
        for part in directory.components().filter(|part| matches!(part, Component::Normal(_))) {
            let next = real.join(part);
            if next.is_symlink() {
                self.found.insert(ProtectedPath::Code { directory: next.clone(), loader });
            }
            real = next.canonicalize().unwrap_or(next);
        }
        let is_new = self.found.insert(ProtectedPath::Code { directory, loader });
        self.found.insert(ProtectedPath::Code { directory: real, loader });
        is_new
    }

    /// Adds files and directories to which links beneath a directory lead. Breadth first: links of packages are near.
    fn links(&mut self, directory: &Path, loader: Loader) {
        // A linked package of the workspace has documents too.
        let linked = if directory.ends_with("node_modules") { Loader::Node } else { loader };
        let mut waiting = VecDeque::from([directory.to_owned()]);
        let mut count = 0;
        while let Some(above) = waiting.pop_front() {
            for entry in above.read_dir().into_iter().flatten().flatten() {
                count += 1;
                if count > MAX_ENTRIES {
                    return;
                }
                let (path, kind) = (entry.path(), entry.file_type());
                let Ok(kind) = kind else { continue };
                if kind.is_dir() && entry.file_name() != ".git" {
                    waiting.push_back(path);
                } else if kind.is_symlink()
                    && let Ok(target) = path.canonicalize()
                    && !is_system(&target)
                    && !target.starts_with(directory)
                {
                    if target.is_dir() {
                        self.found.insert(ProtectedPath::Code { directory: target, loader: linked });
                    } else if loader.may_load(path.strip_prefix(directory).unwrap_or(&path)) {
                        self.found.insert(ProtectedPath::Trusted(target));
                    }
                }
            }
        }
    }
}

/// Whether programs of a language load code from their working directory, wherever their file is.
fn loads_from_start(language: Loader) -> bool {
    matches!(language, Loader::Ruby | Loader::Perl | Loader::Php | Loader::Java | Loader::Shell)
}

/// Whether an option runs a module or code of the command line: `-m`, `-uc`, `--eval=…`.
fn is_code(option: &str) -> bool {
    let name = option.split('=').next().unwrap_or_default();
    let is_short = !name.starts_with("--") && name.len() < 5;
    INLINE.contains(&name) || is_short && name.ends_with(['m', 'c', 'e'])
}

/// Whether a command runs in the environment of a project: `uv run`, `poetry run`.
fn is_project_launcher(words: &[String]) -> bool {
    let name = words.first().map_or("", |word| word.rsplit('/').next().unwrap_or(word));
    ["uv", "poetry"].contains(&name) && words.iter().any(|word| word == "run")
}

/// The path that a word of a command means: the existing one, else the first.
fn find(text: &str, bases: &[PathBuf]) -> Option<PathBuf> {
    if text.is_empty() || text.contains("://") {
        return None;
    }
    let mut all = bases.iter().map(|base| base.join(text));
    let first = all.next()?;
    if first.exists() { Some(first) } else { all.find(|path| path.exists()).or(Some(first)) }
}

fn looks_like_path(text: &str) -> bool {
    !text.starts_with('@') && (text.contains('/') || text.contains('.'))
}

#[cfg(all(test, unix))]
mod tests {
    use toolpost_sandbox::Grants;

    use super::*;

    #[test]
    fn links_of_packages_and_of_the_path_lead_to_code() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        for path in ["packages/dep", "app/node_modules", "docs"] {
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        std::fs::write(root.join("app/main.js"), "").unwrap();
        std::fs::write(root.join("docs/a.md"), "").unwrap();
        for (target, link) in [
            ("../../packages/dep", "app/node_modules/dep"),
            ("../docs/a.md", "app/a.md"),
            ("../docs/a.md", "app/code"),
            ("app", "current"),
        ] {
            std::os::unix::fs::symlink(target, root.join(link)).unwrap();
        }
        let protected = |program: &str| {
            let mut code = TrustedCode::new([root.clone()]);
            code.add(&Named::Program { path: root.join(program), grants: Grants::default() });
            code.into_paths().collect::<BTreeSet<_>>()
        };
        let code = |path: &str, loader| ProtectedPath::Code { directory: root.join(path), loader };
        let found = protected("current/main.js");
        for expected in [
            code("app", Loader::Node),
            code("current", Loader::Node),
            code("packages/dep", Loader::Node),
            code("node_modules", Loader::Any),
            ProtectedPath::Trusted(root.join("app/main.js")),
            ProtectedPath::Trusted(root.join("docs/a.md")),
        ] {
            assert!(found.contains(&expected), "{expected:?}: {found:?}");
        }
        assert!(!found.iter().any(|path| path.path() == root.join("docs") || path.path() == root));
        // Without the link of a name that Node.js loads, the document may change.
        std::fs::remove_file(root.join("app/code")).unwrap();
        assert!(!protected("app/main.js").contains(&ProtectedPath::Trusted(root.join("docs/a.md"))));
    }
}
