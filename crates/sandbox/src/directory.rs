//! The directories that a program has for itself.

use std::path::{Component, Path, PathBuf};

/// What lies in the home directory of a user.
const OF_HOME: [&str; 8] =
    [".ssh", ".gnupg", ".aws", ".bashrc", ".profile", ".zshrc", ".bash_history", ".netrc"];
/// Directories of a home directory that many programs share.
const SHARED: [&str; 6] = [".ssh", ".gnupg", ".aws", ".config", ".local", ".cache"];
/// Directories whose entries are home directories.
const HOMES: [&str; 2] = ["/home", "/Users"];
/// Files that Node.js runs.
const NODE: [&str; 6] = ["js", "mjs", "cjs", "ts", "mts", "cts"];

/// Whether a directory can be shown for the sake of one program: no home directory, no top-level directory such as
/// `/tmp`, and none that programs share.
pub(crate) fn is_dedicated(folder: &Path) -> bool {
    let depth = folder.components().filter(|part| matches!(part, Component::Normal(_))).count();
    let is_home = folder.parent().is_some_and(|parent| HOMES.iter().any(|homes| parent == Path::new(homes)));
    let name = folder.file_name().unwrap_or_default();
    folder.is_absolute()
        && depth >= 2
        && !is_home
        && SHARED.iter().all(|shared| name != *shared)
        && OF_HOME.iter().all(|entry| folder.join(entry).symlink_metadata().is_err())
}

/// The directories of the host that a program reads besides its own file: the directory that it lies in, and for a file
/// that Node.js runs its package and the `node_modules` above it.
///
/// A directory that a program does not have for itself is not among them: a home directory, a top-level directory such
/// as `/tmp`, a directory that programs share such as `~/.config`.
///
/// ```
/// # use std::path::Path;
/// assert_eq!(toolpost_sandbox::program_directories(Path::new("/tmp/tool.py")), Vec::<&Path>::new());
/// ```
pub fn program_directories(program: &Path) -> Vec<PathBuf> {
    let above: Vec<&Path> = program.ancestors().skip(1).collect();
    let mut folders: Vec<PathBuf> =
        above.first().filter(|own| is_dedicated(own)).map(|own| (*own).to_owned()).into_iter().collect();
    if program.extension().is_some_and(|extension| NODE.iter().any(|kind| extension == *kind)) {
        let package = above.iter().find(|folder| folder.join("package.json").is_file());
        folders.extend(package.filter(|folder| is_dedicated(folder)).map(|folder| (*folder).to_owned()));
        let modules = above.iter().map(|folder| folder.join("node_modules"));
        folders.extend(modules.filter(|modules| modules.is_dir()));
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_many_programs_is_none_of_ones_own() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("user");
        for directory in ["tools/.git", ".ssh", ".config"] {
            std::fs::create_dir_all(home.join(directory)).unwrap();
        }
        for (path, expected) in [
            ("/", false),
            ("/tmp", false),
            ("/root", false),
            ("/home/ada", false),
            ("/home/ada/tools", true),
            ("/srv/tools", true),
            ("tools/own", false),
        ] {
            assert_eq!(is_dedicated(Path::new(path)), expected, "{path}");
        }
        for (path, expected) in [("", false), ("tools", true), (".ssh", false), (".config", false)] {
            assert_eq!(is_dedicated(&home.join(path)), expected, "{path}");
        }
    }

    #[test]
    fn a_node_program_reads_its_package() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("work");
        for directory in ["app/dist", "node_modules/a", "app/node_modules/b"] {
            std::fs::create_dir_all(root.join(directory)).unwrap();
        }
        std::fs::write(root.join("app/package.json"), "{}").unwrap();
        let folders = program_directories(&root.join("app/dist/server.mjs"));
        let expected = ["app/dist", "app", "app/node_modules", "node_modules"].map(|path| root.join(path));
        assert_eq!(folders, expected);
        assert_eq!(program_directories(&root.join("app/dist/server.py")), [root.join("app/dist")]);
    }
}
