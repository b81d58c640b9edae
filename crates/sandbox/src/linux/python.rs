//! Finds the directories that a Python installation or virtual environment reads.

use std::ffi::OsStr;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

use super::interpreter::is_system;
use crate::directory::is_dedicated;

/// The file that marks a virtual environment.
const CONFIGURATION: &str = "pyvenv.cfg";
/// The largest environment file to read, in bytes.
const MAX_FILE: u64 = 256 << 10;
/// The maximum number of directory entries to read.
const MAX_ENTRIES: usize = 4096;
/// The maximum number of shown paths of editable installs.
const MAX_EDITABLE: usize = 64;
/// Files that mark a project with an editable install.
const PROJECT: [&str; 3] = ["pyproject.toml", "setup.py", "setup.cfg"];

/// The virtual environment of a program, by its start path, as Python itself does.
pub(super) fn environment(program: &Path) -> Option<PathBuf> {
    let directory = program.parent()?.parent()?;
    (directory.join(CONFIGURATION).is_file() && is_dedicated(directory)).then(|| directory.to_owned())
}

/// The paths that the files and links of an environment name: its base installations, and the sources of
/// editable installs. Anyone who could write to it chose them.
pub(super) fn named_by(environment: &Path, program: &Path) -> Vec<PathBuf> {
    let mut needs = Vec::new();
    let home = read(&environment.join(CONFIGURATION)).and_then(|text| home(&text));
    // The base by its name, and the one behind the links.
    needs.extend(home.as_deref().and_then(Path::parent).map(installation).unwrap_or_default());
    let real = program.canonicalize().unwrap_or_default();
    needs.extend(installation_of(&real));
    for packages in site_packages(environment) {
        needs.extend(editable(&packages));
    }
    needs
}

/// The directory of the interpreter that created an environment.
fn home(configuration: &str) -> Option<PathBuf> {
    let value = configuration.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "home").then(|| value.trim())
    })?;
    Some(PathBuf::from(value)).filter(|path| path.is_absolute())
}

/// The paths that an interpreter reads in its installation `PREFIX/bin/PROGRAM`.
pub(super) fn installation_of(program: &Path) -> Vec<PathBuf> {
    let prefix = program.parent().filter(|directory| directory.ends_with("bin")).and_then(Path::parent);
    prefix.map(installation).unwrap_or_default()
}

/// The directories of an installation with a standard library, if not every level shows them.
fn installation(prefix: &Path) -> Vec<PathBuf> {
    if is_system(prefix) || !libraries(prefix).any(|library| library.join("os.py").is_file()) {
        return Vec::new();
    }
    if is_dedicated(prefix) {
        return vec![prefix.to_owned()];
    }
    ["bin", "lib", "lib64"].iter().map(|part| prefix.join(part)).filter(|part| part.is_dir()).collect()
}

/// The module directories of a prefix, such as `lib/python3.12`.
fn libraries(prefix: &Path) -> impl Iterator<Item = PathBuf> {
    let is_python = |name: &OsStr| {
        let name = name.as_encoded_bytes();
        name.starts_with(b"python3") || name.starts_with(b"pypy3")
    };
    ["lib", "lib64"]
        .into_iter()
        .flat_map(move |part| entries(&prefix.join(part)))
        .filter(move |path| path.file_name().is_some_and(is_python))
}

fn site_packages(environment: &Path) -> impl Iterator<Item = PathBuf> {
    libraries(environment).map(|library| library.join("site-packages"))
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(directory).into_iter().flatten().take(MAX_ENTRIES).flatten().map(|entry| entry.path())
}

fn read(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
    String::from_utf8(bytes).ok()
}

/// The sources in `.pth` files and setuptools finders.
fn editable(packages: &Path) -> Vec<PathBuf> {
    let mut needs = Vec::new();
    for file in entries(packages) {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(".pth") {
            let text = read(&file).unwrap_or_default();
            let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("import"));
            needs.extend(lines.flat_map(|line| sources(Path::new(line))));
        } else if name.starts_with("__editable__") && name.ends_with("_finder.py") {
            let text = read(&file).unwrap_or_default();
            let mapping = text.lines().find(|line| line.starts_with("MAPPING")).unwrap_or_default();
            let quoted = mapping.split(['\'', '"']).map(Path::new);
            needs.extend(quoted.filter(|path| in_project(path)).map(Path::to_owned));
        }
    }
    needs.truncate(MAX_EDITABLE);
    needs
}

/// The importable entries of a project directory. A package can list any path, so nothing else is shown.
fn sources(directory: &Path) -> Vec<PathBuf> {
    if is_project(directory) && is_plain(directory) {
        let is_module = |path: &PathBuf| {
            path.extension().is_some_and(|kind| kind == "py") || path.join("__init__.py").is_file()
        };
        return entries(directory).filter(is_module).collect();
    }
    if in_project(directory) { vec![directory.to_owned()] } else { Vec::new() }
}

/// The project whose environment lies directly in it.
pub(super) fn project_of(environment: &Path) -> Option<PathBuf> {
    let directory = environment.parent()?;
    (is_project(directory) && is_dedicated(directory)).then(|| directory.to_owned())
}

fn is_project(directory: &Path) -> bool {
    PROJECT.iter().any(|name| directory.join(name).is_file())
}

/// Whether a path is directly in a project or in its `src`.
fn in_project(path: &Path) -> bool {
    let above = || path.ancestors().skip(1).take(2);
    is_plain(path)
        && path.exists()
        && above().any(|directory| is_project(directory) && is_dedicated(directory))
}

/// Whether a path is absolute and has no hidden component.
fn is_plain(path: &Path) -> bool {
    let is_hidden = |part: Component<'_>| match part {
        Component::Normal(name) => name.as_encoded_bytes().starts_with(b"."),
        part => part == Component::ParentDir,
    };
    path.is_absolute() && !path.components().any(is_hidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn an_environment_needs_its_base_and_editable_sources() {
        // A temporary directory may be hidden, but sources are not.
        let directory = tempfile::Builder::new().prefix("python").tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        file(&root.join("base/lib/python3.12/os.py"), "");
        file(&root.join("base/bin/python3.12"), "");
        let packages = root.join("venv/lib/python3.12/site-packages");
        file(&root.join("venv/pyvenv.cfg"), &format!("home = {}/base/bin\nversion = 3.12\n", root.display()));
        file(&root.join("venv/bin/python"), "");
        for (project, module) in [("flat", "flat/one/__init__.py"), ("src", "src/src/two/__init__.py")] {
            file(&root.join(project).join("pyproject.toml"), "");
            file(&root.join(module), "");
        }
        file(&root.join("flat/.env"), "KEY=1");
        file(&root.join("mapped/setup.py"), "");
        file(&root.join("mapped/three/__init__.py"), "");
        file(&root.join(".ssh/id"), "");
        file(&root.join("private/notes.txt"), "");
        let paths = ["flat", "src/src", ".ssh", "private", "absent"].map(|path| root.join(path));
        let paths = paths.map(|path| path.display().to_string()).join("\n");
        file(&packages.join("editable.pth"), &format!("import os\n{paths}\n/\n../x\n"));
        let mapping = format!(
            "MAPPING: dict[str, str] = {{'three': '{0}/mapped/three', 'x': '{0}/.ssh'}}\n",
            root.display()
        );
        file(&packages.join("__editable___three_1_0_finder.py"), &mapping);
        let program = root.join("venv/bin/python");
        assert_eq!(environment(&program), Some(root.join("venv")));
        let mut needs = named_by(&root.join("venv"), &program);
        needs.sort();
        let expected = ["base", "flat/one", "mapped/three", "src/src"].map(|path| root.join(path));
        assert_eq!(needs, expected);
    }

    #[test]
    fn an_installation_in_a_home_directory_shows_its_own_directories() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        file(&root.join(".bashrc"), "");
        file(&root.join("lib/python3.12/os.py"), "");
        file(&root.join("bin/python3"), "");
        assert_eq!(installation_of(&root.join("bin/python3")), [root.join("bin"), root.join("lib")]);
        // Without a standard library it is not an installation.
        std::fs::remove_file(root.join("lib/python3.12/os.py")).unwrap();
        assert_eq!(installation_of(&root.join("bin/python3")), Vec::<PathBuf>::new());
    }

    #[test]
    fn the_home_of_a_configuration_is_absolute() {
        for (text, expected) in [
            ("home = /usr/bin\n", Some("/usr/bin")),
            ("version=3\nhome=/opt/a b/bin", Some("/opt/a b/bin")),
            ("home = bin", None),
            ("homes = /usr/bin", None),
            ("", None),
        ] {
            assert_eq!(home(text).as_deref(), expected.map(Path::new), "{text}");
        }
    }
}
