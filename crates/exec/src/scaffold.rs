//! Scaffolds of new tool programs, which pass their own test offline.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use toolpost_core::ToolError;

/// The library of a Python program: the modules of `toolpost.author` as one file.
const AUTHOR: (&str, &str) =
    ("toolpost_author.py", include_str!(concat!(env!("OUT_DIR"), "/toolpost_author.py")));
/// Maximum length of a project name.
const MAX_NAME: usize = 64;
/// Names that Cargo rejects or that Rust reserves.
const RESERVED_IN_RUST: [&str; 60] = [
    "abstract",
    "alloc",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "build",
    "const",
    "continue",
    "core",
    "crate",
    "debug",
    "deps",
    "do",
    "dyn",
    "else",
    "enum",
    "examples",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "incremental",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "override",
    "priv",
    "proc_macro",
    "pub",
    "ref",
    "release",
    "return",
    "self",
    "static",
    "std",
    "struct",
    "super",
    "test",
    "toolpost",
    "trait",
    "true",
    "try",
    "type",
    "typeof",
    "unsafe",
    "unsized",
    "use",
    "virtual",
];

/// The `toolpost` dependency of a Rust project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dependency {
    /// A minimum version from the registry.
    Version(String),
    /// A directory on this machine.
    Path(PathBuf),
}

/// The kind of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProjectKind {
    /// A Python program, the library that it imports, and its test. It has no other dependencies.
    Executable,
    /// A Cargo project, and its test.
    Rust(Dependency),
}

/// A new project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    /// Its directory, as it was passed.
    pub directory: PathBuf,
    /// Its files, relative to the directory.
    pub files: Vec<PathBuf>,
    /// The command line that calls it, relative to the directory.
    pub try_it: Vec<String>,
    /// The command line of its test, relative to the directory.
    pub test: Vec<String>,
}

/// Creates a project in a new or empty directory. Nothing is overwritten; files written before an error remain.
///
/// # Errors
/// `INVALID_INPUT` for an invalid name, `CONFLICT` if the directory is not empty, `PERMISSION`, `INVALID_PATH` or
/// `DEPENDENCY` if a write fails.
pub fn scaffold(kind: &ProjectKind, name: &str, directory: &Path) -> Result<Project, ToolError> {
    check_name(kind, name)?;
    fs::create_dir_all(directory).map_err(|error| failed("create the directory", directory, &error))?;
    let mut entries = fs::read_dir(directory).map_err(|error| failed("read", directory, &error))?;
    if entries.next().is_some() {
        return Err(ToolError::conflict(format!("the directory `{}` is not empty", directory.display()))
            .suggest("Name a new directory; nothing is overwritten."));
    }
    let dependency = match kind {
        ProjectKind::Executable => String::new(),
        ProjectKind::Rust(dependency) => dependency.line()?,
    };
    let mut files = Vec::new();
    for (file, text, is_program) in kind.files() {
        let file = file.replace("{{name}}", name);
        let text = text.replace("{{name}}", name).replace("{{dependency}}", &dependency);
        write_new(&directory.join(&file), &text, is_program)?;
        files.push(PathBuf::from(file));
    }
    if *kind == ProjectKind::Executable {
        let (file, text) = AUTHOR;
        write_new(&directory.join(file), text, false)?;
        files.push(PathBuf::from(file));
    }
    let words = |words: &[&str]| words.iter().map(|word| word.replace("{{name}}", name)).collect();
    let (try_it, test): (&[&str], &[&str]) = match kind {
        ProjectKind::Executable => {
            (&["./{{name}}", "greet", "--name", "Ada"], &["python3", "test_{{name}}.py"])
        }
        ProjectKind::Rust(_) => (&["cargo", "run", "--", "greet", "--name", "Ada"], &["cargo", "test"]),
    };
    Ok(Project { directory: directory.to_owned(), files, try_it: words(try_it), test: words(test) })
}

impl ProjectKind {
    /// The templates: name, content, and whether the file is executable.
    fn files(&self) -> Vec<(&'static str, &'static str, bool)> {
        match self {
            Self::Executable => vec![
                ("{{name}}", include_str!("../scaffold/executable/program.py"), true),
                ("test_{{name}}.py", include_str!("../scaffold/executable/test.py"), false),
            ],
            Self::Rust(_) => vec![
                ("Cargo.toml", include_str!("../scaffold/rust/Cargo.toml.template"), false),
                (".gitignore", "/target\n", false),
                ("src/main.rs", include_str!("../scaffold/rust/src/main.rs.template"), false),
                ("tests/program.rs", include_str!("../scaffold/rust/tests/program.rs.template"), false),
            ],
        }
    }
}

impl Dependency {
    /// Its line in `Cargo.toml`.
    fn line(&self) -> Result<String, ToolError> {
        // A JSON string is also a TOML string.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        match self {
            Self::Version(version) => Ok(format!("toolpost = {}", quoted(version))),
            Self::Path(path) => match path.to_str() {
                Some(text) => Ok(format!("toolpost = {{ path = {} }}", quoted(text))),
                None => Err(ToolError::invalid_path(format!("the path `{}` is not UTF-8", path.display()))),
            },
        }
    }
}

fn check_name(kind: &ProjectKind, name: &str) -> Result<(), ToolError> {
    let mut letters = name.chars();
    let is_good = letters.next().is_some_and(|first| first.is_ascii_lowercase())
        && letters.all(|letter| {
            letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_' || letter == '-'
        })
        && name.len() <= MAX_NAME;
    if !is_good {
        let short: String = name.chars().take(MAX_NAME).collect();
        return Err(ToolError::invalid_input(format!(
            "{short:?} is not a project name; expected a lower-case letter, then at most {} lower-case letters, \
             digits, `_` or `-`",
            MAX_NAME - 1
        )));
    }
    if matches!(kind, ProjectKind::Rust(_)) && RESERVED_IN_RUST.contains(&name) {
        return Err(ToolError::invalid_input(format!("`{name}` is reserved in Rust; choose another name")));
    }
    Ok(())
}

fn write_new(path: &Path, text: &str, is_program: bool) -> Result<(), ToolError> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(|error| failed("create the directory", directory, &error))?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if is_program {
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o755);
    }
    #[cfg(not(unix))]
    let _ = is_program;
    let mut file = options.open(path).map_err(|error| failed("create the file", path, &error))?;
    file.write_all(text.as_bytes()).map_err(|error| failed("write", path, &error))
}

fn failed(action: &str, path: &Path, error: &std::io::Error) -> ToolError {
    let message = format!("cannot {action} `{}`: {error}", path.display());
    match error.kind() {
        ErrorKind::AlreadyExists => {
            ToolError::conflict(message).suggest("Nothing is overwritten; choose another name.")
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => ToolError::permission(message),
        ErrorKind::NotADirectory | ErrorKind::NotFound => ToolError::invalid_path(message),
        _ => ToolError::dependency(message),
    }
}
