//! New tool programs: a project that passes its own test, offline.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use toolpost_core::ToolError;

/// The longest name of a project.
const MAX_NAME: usize = 64;
/// Names that Cargo refuses, or that mean something else in Rust.
const TAKEN_IN_RUST: [&str; 60] = [
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

/// Where a project in Rust gets `toolpost` from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dependency {
    /// The registry, at least this version.
    Version(String),
    /// A folder on this machine.
    Path(PathBuf),
}

/// What kind of project is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProjectKind {
    /// A program in Python without any dependency, and its test.
    Executable,
    /// A Cargo project, and its test.
    Rust(Dependency),
}

/// A project that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    /// Its folder, as it was given.
    pub folder: PathBuf,
    /// Its files, relative to the folder.
    pub files: Vec<PathBuf>,
    /// The command line that calls it, to be run in the folder.
    pub try_it: Vec<String>,
    /// The command line of its test, to be run in the folder.
    pub test: Vec<String>,
}

/// Makes a project in a folder that does not exist yet, or is empty. Nothing is overwritten; what was made before an
/// error stays.
///
/// # Errors
/// `INVALID_INPUT` for a name that cannot be one, `CONFLICT` when the folder has something in it, `PERMISSION`,
/// `INVALID_PATH` or `DEPENDENCY` when it cannot be written.
pub fn scaffold(kind: &ProjectKind, name: &str, folder: &Path) -> Result<Project, ToolError> {
    check_name(kind, name)?;
    fs::create_dir_all(folder).map_err(|error| failed("make the folder", folder, &error))?;
    let mut entries = fs::read_dir(folder).map_err(|error| failed("look into", folder, &error))?;
    if entries.next().is_some() {
        return Err(ToolError::conflict(format!("the folder `{}` is not empty", folder.display()))
            .suggest("Name a folder that does not exist yet; nothing is overwritten."));
    }
    let dependency = match kind {
        ProjectKind::Executable => String::new(),
        ProjectKind::Rust(dependency) => dependency.line()?,
    };
    let mut files = Vec::new();
    for (file, text, is_program) in kind.files() {
        let file = file.replace("{{name}}", name);
        let text = text.replace("{{name}}", name).replace("{{dependency}}", &dependency);
        write_new(&folder.join(&file), &text, is_program)?;
        files.push(PathBuf::from(file));
    }
    let words = |words: &[&str]| words.iter().map(|word| word.replace("{{name}}", name)).collect();
    let (try_it, test): (&[&str], &[&str]) = match kind {
        ProjectKind::Executable => {
            (&["./{{name}}", "greet", "--name", "Ada"], &["python3", "test_{{name}}.py"])
        }
        ProjectKind::Rust(_) => (&["cargo", "run", "--", "greet", "--name", "Ada"], &["cargo", "test"]),
    };
    Ok(Project { folder: folder.to_owned(), files, try_it: words(try_it), test: words(test) })
}

impl ProjectKind {
    /// Name, content, and whether it is executable.
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
        // A JSON string is a TOML string as well.
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
            "{short:?} cannot be the name of a project: expected a small letter, then at most {} small letters, \
             digits, `_` or `-`",
            MAX_NAME - 1
        )));
    }
    if matches!(kind, ProjectKind::Rust(_)) && TAKEN_IN_RUST.contains(&name) {
        return Err(ToolError::invalid_input(format!(
            "`{name}` means something else in Rust: take another name"
        )));
    }
    Ok(())
}

fn write_new(path: &Path, text: &str, is_program: bool) -> Result<(), ToolError> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|error| failed("make the folder", folder, &error))?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if is_program {
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o755);
    }
    #[cfg(not(unix))]
    let _ = is_program;
    let mut file = options.open(path).map_err(|error| failed("make the file", path, &error))?;
    file.write_all(text.as_bytes()).map_err(|error| failed("write", path, &error))
}

fn failed(action: &str, path: &Path, error: &std::io::Error) -> ToolError {
    let message = format!("cannot {action} `{}`: {error}", path.display());
    match error.kind() {
        ErrorKind::AlreadyExists => {
            ToolError::conflict(message).suggest("Nothing is overwritten: take another name.")
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => ToolError::permission(message),
        ErrorKind::NotADirectory | ErrorKind::NotFound => ToolError::invalid_path(message),
        _ => ToolError::dependency(message),
    }
}
