//! Files that a program loads as code from a directory, by its language.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::protected::folded_parts;

/// The language of a program, which decides what it loads as code from a directory.
///
/// Names are compared without case. A file that does not exist yet counts: it can precede another file of the search
/// path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Loader {
    /// Modules, byte code, extension modules, archives and metadata of packages.
    Python,
    /// Any file but documents, data and sources of other languages: `require("./a")` loads a file `a` of any content.
    Node,
    /// Sources, extension modules and files of Bundler.
    Ruby,
    /// Modules, sources and extension modules.
    Perl,
    /// Sources, archives and configuration.
    Php,
    /// Classes, archives, sources and service files.
    Java,
    /// Any file but documents and data: a shell script starts programs of any language.
    Shell,
    /// Any file but documents and data: libraries, plug-ins and programs.
    Native,
    /// Every file.
    Any,
}

/// The files that a language loads.
enum Table {
    Only {
        extensions: &'static [&'static str],
        names: &'static [&'static str],
        /// Directories whose files all count, by name or by the end of the name.
        directories: &'static [&'static str],
    },
    /// All but files with these extensions.
    Except(&'static [&'static [&'static str]]),
    All,
}

/// Extensions of documents and data. Lower case, as all tables here.
const DATA: &[&str] = &[
    "md", "markdown", "rst", "adoc", "txt", "text", "log", "csv", "tsv", "pdf", "doc", "docx", "odt", "xls",
    "xlsx", "ods", "ppt", "pptx", "html", "htm", "css", "scss", "png", "jpg", "jpeg", "gif", "svg", "webp",
    "bmp", "ico", "tif", "tiff", "mp3", "mp4", "wav", "ogg", "webm", "ttf", "otf", "woff", "woff2",
    "parquet", "arrow", "feather", "npy", "npz", "h5", "hdf5", "db", "sqlite", "sqlite3", "jsonl", "ndjson",
    "ipynb", "tex", "bib", "diff", "patch", "bak", "tmp", "pid",
];
/// Extensions of sources that Node.js does not load.
const NOT_NODE: &[&str] = &[
    "py", "pyc", "pyi", "rb", "pl", "pm", "php", "java", "class", "jar", "rs", "go", "c", "h", "cc", "cpp",
    "hpp", "cs", "swift", "kt", "scala", "r", "jl", "lua", "sql", "sh", "bash", "zsh", "toml", "yaml", "yml",
    "ini", "cfg", "conf", "xml", "tf", "proto",
];
/// Hidden files that git and editors read.
const PLAIN_NAMES: &[&str] =
    &[".gitignore", ".gitattributes", ".gitkeep", ".editorconfig", ".dockerignore", ".prettierignore"];
/// Directories of packages, whose files all count for every language.
const PACKAGES: &[&str] = &["node_modules", ".pnpm", ".yarn"];

impl Loader {
    const fn table(self) -> Table {
        match self {
            Self::Python => Table::Only {
                extensions: &[
                    "py", "pyc", "pyo", "pyw", "pyx", "pyd", "so", "dll", "dylib", "pth", "_pth", "egg-link",
                    "egg", "whl", "zip", "pyz", "pyzw",
                ],
                names: &["pyvenv.cfg", "pybuilddir.txt", "entry_points.txt", ".python-version"],
                directories: &["__pycache__", ".dist-info", ".egg-info", ".egg"],
            },
            Self::Node => Table::Except(&[DATA, NOT_NODE]),
            Self::Ruby => Table::Only {
                extensions: &[
                    "rb", "rbw", "ru", "rake", "gemspec", "gem", "so", "bundle", "dll", "dylib", "o", "jar",
                ],
                names: &["gemfile", "gemfile.lock", "gems.locked", "rakefile", ".ruby-version"],
                directories: &[".bundle"],
            },
            Self::Perl => Table::Only {
                extensions: &[
                    "pm", "pmc", "pl", "plc", "ph", "al", "ix", "bs", "t", "psgi", "so", "bundle", "dll",
                    "dylib",
                ],
                names: &[],
                directories: &["auto"],
            },
            Self::Php => Table::Only {
                extensions: &[
                    "php", "php3", "php4", "php5", "php7", "php8", "phtml", "phps", "phar", "inc", "hh",
                    "module", "so", "dll", "dylib",
                ],
                names: &[".user.ini", "php.ini", "php-cli.ini", ".htaccess", "composer.json"],
                directories: &[],
            },
            Self::Java => Table::Only {
                extensions: &[
                    "class", "jar", "war", "ear", "jmod", "jsa", "zip", "java", "kt", "kts", "groovy",
                    "scala", "clj", "bsh", "jsp", "so", "dll", "dylib", "jnilib",
                ],
                names: &[],
                directories: &["meta-inf"],
            },
            Self::Shell | Self::Native => Table::Except(&[DATA]),
            Self::Any => Table::All,
        }
    }

    /// Whether the program can load a file as code. The path is relative to the directory.
    pub fn may_load(self, path: &Path) -> bool {
        self.loads(&folded_parts(path))
    }

    /// Whether the program can load a file as code. `beneath` are the folded names from the directory to the file.
    pub(crate) fn loads(self, beneath: &[String]) -> bool {
        let Some((name, above)) = beneath.split_last() else { return false };
        match self.table() {
            Table::All => true,
            Table::Except(lists) => {
                above.iter().any(|part| PACKAGES.contains(&part.as_str()))
                    || !PLAIN_NAMES.contains(&name.as_str())
                        && extension(name).is_none_or(|own| lists.iter().all(|list| !list.contains(&own)))
            }
            Table::Only { extensions, names, directories } => {
                // Libraries with a version: `libx.so.1`.
                names.contains(&name.as_str())
                    || name.contains(".so.")
                    || extension(name).is_some_and(|own| extensions.contains(&own))
                    || above.iter().any(|part| directories.iter().any(|directory| part.ends_with(directory)))
            }
        }
    }

    /// Whether a link of this name can lead to a directory with code.
    pub(crate) fn follows(self, name: &str) -> bool {
        matches!(self.table(), Table::All) || extension(name).is_none_or(|own| !DATA.contains(&own))
    }
}

/// The extension of a name; a hidden file without another dot has none.
fn extension(name: &str) -> Option<&str> {
    name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()).map(|(_, extension)| extension)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_language_loads_its_own_files() {
        use Loader::{Any, Java, Native, Node, Perl, Php, Python, Ruby, Shell};
        for (path, expected) in [
            ("helper.py", vec![Python, Shell, Native, Any]),
            ("HELPER.Py", vec![Python, Shell, Native, Any]),
            ("__pycache__/helper.cpython-311.pyc", vec![Python, Shell, Native, Any]),
            ("x.dist-info/entry_points.txt", vec![Python, Any]),
            ("a.pth", vec![Python, Node, Shell, Native, Any]),
            ("pyvenv.cfg", vec![Python, Shell, Native, Any]),
            (
                "m.cpython-311-x86_64-linux-gnu.so",
                vec![Python, Node, Ruby, Perl, Php, Java, Shell, Native, Any],
            ),
            ("libx.so.1", vec![Python, Node, Ruby, Perl, Php, Java, Shell, Native, Any]),
            ("lib.zip", vec![Python, Node, Java, Shell, Native, Any]),
            ("helper.js", vec![Node, Shell, Native, Any]),
            ("helper", vec![Node, Shell, Native, Any]),
            ("app.service", vec![Node, Shell, Native, Any]),
            ("package.json", vec![Node, Shell, Native, Any]),
            ("node_modules/a/notes.md", vec![Node, Shell, Native, Any]),
            ("helper.rb", vec![Ruby, Shell, Native, Any]),
            ("Gemfile", vec![Node, Ruby, Shell, Native, Any]),
            ("lib/Helper.pm", vec![Perl, Shell, Native, Any]),
            ("Helper.pmc", vec![Node, Perl, Shell, Native, Any]),
            ("helper.inc", vec![Node, Php, Shell, Native, Any]),
            ("Helper.class", vec![Java, Shell, Native, Any]),
            ("META-INF/services/x.Y", vec![Node, Java, Shell, Native, Any]),
            ("helper.sh", vec![Shell, Native, Any]),
            ("docs/guide.md", vec![Any]),
            ("data.csv", vec![Any]),
            (".gitignore", vec![Any]),
            ("settings.toml", vec![Shell, Native, Any]),
        ] {
            let parts = folded_parts(Path::new(path));
            let all = [Python, Node, Ruby, Perl, Php, Java, Shell, Native, Any];
            let found: Vec<Loader> = all.into_iter().filter(|loader| loader.loads(&parts)).collect();
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn a_link_can_lead_to_code_unless_it_is_named_as_a_document() {
        for (name, expected) in [
            ("helper", true),
            ("python3.12", true),
            ("site-packages", true),
            (".venv", true),
            ("data.csv", false),
        ] {
            assert_eq!(Loader::Python.follows(name), expected, "{name}");
        }
        assert!(Loader::Any.follows("data.csv"));
    }
}
