//! Directories that belong to one program alone.

use std::path::{Component, Path, PathBuf};

use crate::{Need, Origin};

/// Entries that mark a home directory.
const OF_HOME: [&str; 8] =
    [".ssh", ".gnupg", ".aws", ".bashrc", ".profile", ".zshrc", ".bash_history", ".netrc"];
/// Directories in a home directory that many programs share.
const SHARED: [&str; 6] = [".ssh", ".gnupg", ".aws", ".config", ".local", ".cache"];
/// Parents of home directories.
const HOMES: [&str; 2] = ["/home", "/Users"];
/// Extensions of files that Node.js runs.
const NODE: [&str; 6] = ["js", "mjs", "cjs", "ts", "mts", "cts"];

/// Whether a directory belongs to one program: not a home, top-level or shared directory.
pub(crate) fn is_dedicated(directory: &Path) -> bool {
    let depth = directory.components().filter(|part| matches!(part, Component::Normal(_))).count();
    let is_home =
        directory.parent().is_some_and(|parent| HOMES.iter().any(|homes| parent == Path::new(homes)));
    let name = directory.file_name().unwrap_or_default();
    directory.is_absolute()
        && depth >= 2
        && !is_home
        && SHARED.iter().all(|shared| name != *shared)
        && OF_HOME.iter().all(|entry| directory.join(entry).symlink_metadata().is_err())
}

/// The host directories that a program reads besides its own file.
///
/// They are its parent directory and, for a Node.js file, its package and the `node_modules` above it. Shared
/// directories are excluded: home directories, top-level directories such as `/tmp`, and common ones such as
/// `~/.config`.
///
/// ```
/// # use std::path::Path;
/// assert_eq!(toolpost_sandbox::program_directories(Path::new("/tmp/tool.py")), []);
/// ```
pub fn program_directories(program: &Path) -> Vec<Need> {
    let above: Vec<&Path> = program.ancestors().skip(1).collect();
    let mut directories: Vec<PathBuf> =
        above.first().filter(|own| is_dedicated(own)).map(|own| (*own).to_owned()).into_iter().collect();
    if program.extension().is_some_and(|extension| NODE.iter().any(|kind| extension == *kind)) {
        let package = above.iter().find(|directory| directory.join("package.json").is_file());
        directories.extend(
            package.filter(|directory| is_dedicated(directory)).map(|directory| (*directory).to_owned()),
        );
        let modules = above.iter().map(|directory| directory.join("node_modules"));
        directories.extend(modules.filter(|modules| modules.is_dir()));
    }
    directories.into_iter().map(|directory| Need::new(directory, Origin::Around)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_directory_is_not_dedicated() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().join("user");
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
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("work");
        for directory in ["app/dist", "node_modules/a", "app/node_modules/b"] {
            std::fs::create_dir_all(root.join(directory)).unwrap();
        }
        std::fs::write(root.join("app/package.json"), "{}").unwrap();
        let directories = program_directories(&root.join("app/dist/server.mjs"));
        let expected = ["app/dist", "app", "app/node_modules", "node_modules"].map(|path| root.join(path));
        let paths = |needs: Vec<Need>| needs.iter().map(|need| need.path().to_owned()).collect::<Vec<_>>();
        assert_eq!(paths(directories), expected);
        assert_eq!(paths(program_directories(&root.join("app/dist/server.py"))), [root.join("app/dist")]);
    }
}
