//! Files of a directory with permission rules.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use toolpost::{Ctx, ToolError, data, tools};

use super::pattern::Pattern;
use super::text::{TextEncoding, decode};
use super::{Directory, EntryKind, FileRoot, ListOptions, Write, at_path, megabytes, platform, shown};

/// Maximum size of a file, in bytes.
const MAX_FILE: u64 = 10 << 20;
/// Maximum number of entries inspected for a list.
const MAX_ENTRIES: usize = 10_000;

/// The permission for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FilePermission {
    /// No access, and not listed.
    None,
    /// Listing and reading.
    Read,
    /// Listing, reading, creating and changing.
    Write,
}

impl FromStr for FilePermission {
    type Err = ToolError;

    fn from_str(text: &str) -> Result<Self, ToolError> {
        match text {
            "none" => Ok(Self::None),
            "read" => Ok(Self::Read),
            "write" => Ok(Self::Write),
            _ => Err(ToolError::invalid_input(format!(
                "`{}` is not a permission; expected `none`, `read` or `write`",
                shown(text)
            ))),
        }
    }
}

/// The tools `list`, `read`, `write` and `update` for files beneath a root, with permission rules.
///
/// A rule is a pattern and a permission. The last matching rule decides, so later rules are exceptions from earlier ones.
/// Files without a matching rule are denied. A pattern matches the whole path relative to the root: `*.txt` matches files
/// in the root itself, `**/*.txt` at any depth, `data/**` everything beneath `data`.
///
/// No link is followed in any part of a path, so that a permitted name cannot lead to another file.
///
/// ```
/// use toolpost_tools::{FilePermission, FileSystemTool};
///
/// let files = FileSystemTool::new(
///     "/srv/project",
///     [
///         ("**", FilePermission::Read),
///         ("out/**", FilePermission::Write),
///         ("**/.env", FilePermission::None),
///     ],
/// )?;
/// // `Toolbox::builder().tools(files)`
/// # let _ = files;
/// # Ok::<(), toolpost_core::ToolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct FileSystemTool {
    root: FileRoot,
    rules: Arc<[Rule]>,
}

#[derive(Debug)]
struct Rule {
    text: String,
    pattern: Pattern,
    permission: FilePermission,
}

/// A file that the rules permit to read.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct PermittedFile {
    /// Path relative to the root.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// Whether the rules permit to write it.
    pub writable: bool,
}

/// The files that the rules permit to read.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct PermittedFiles {
    /// The files, sorted by path.
    pub files: Vec<PermittedFile>,
    /// Whether there are more; at most 10,000 entries are inspected.
    pub truncated: bool,
}

impl FileSystemTool {
    /// Creates the tools for a root, with rules from the most general to the most specific.
    ///
    /// The root must exist when a tool is called. Protected paths ([`toolpost_sandbox::protection`]) are never written.
    ///
    /// # Errors
    /// `INVALID_INPUT` for an invalid pattern.
    pub fn new<P: AsRef<str>>(
        root: impl Into<PathBuf>,
        rules: impl IntoIterator<Item = (P, FilePermission)>,
    ) -> Result<Self, ToolError> {
        Self::with_root(FileRoot::new(root), rules)
    }

    /// Creates the tools for a root with allowed protected paths.
    ///
    /// # Errors
    /// `INVALID_INPUT` for an invalid pattern.
    pub fn with_root<P: AsRef<str>>(
        root: FileRoot,
        rules: impl IntoIterator<Item = (P, FilePermission)>,
    ) -> Result<Self, ToolError> {
        let rules = rules.into_iter().map(|(text, permission)| {
            let text = text.as_ref().trim_start_matches("./").to_owned();
            Ok(Rule { pattern: Pattern::new(&text)?, text, permission })
        });
        Ok(Self { root, rules: rules.collect::<Result<_, ToolError>>()? })
    }

    /// The permission for a relative path, and the matching rule.
    fn permission(&self, relative: &str) -> (FilePermission, Option<&str>) {
        let rule = self.rules.iter().rev().find(|rule| rule.pattern.matches_path(relative));
        rule.map_or((FilePermission::None, None), |rule| (rule.permission, Some(&rule.text)))
    }

    fn directory(&self) -> Result<Directory, ToolError> {
        Directory::strict(&self.root)
    }

    /// The relative path, if the rules permit the access. Checked before the file is touched.
    fn permitted(
        &self,
        directory: &Directory,
        path: &str,
        needed: FilePermission,
    ) -> Result<String, ToolError> {
        let relative = directory.relative(path)?;
        let (permission, rule) = self.permission(&relative);
        if permission >= needed {
            return Ok(relative);
        }
        let access = if needed == FilePermission::Write { "write" } else { "read" };
        let why = match rule {
            Some(rule) => format!("the rule `{}` denies it", shown(rule)),
            None => "no rule permits it".to_owned(),
        };
        let error = ToolError::permission(format!("cannot {access} `{}`: {why}", shown(path)));
        Err(at_path(error, path).suggest("List the files to see the permitted ones."))
    }

    fn text(directory: &Directory, relative: &str, path: &str) -> Result<String, ToolError> {
        let found = platform::read(directory, relative, path, MAX_FILE)?;
        let decoded = decode(&found.bytes, Some(TextEncoding::named("utf-8")?)).map_err(|reason| {
            let message =
                format!("`{}` ({}) is not a text file: {reason}", shown(path), megabytes(found.size));
            at_path(ToolError::invalid_path(message), path)
        })?;
        if decoded.lossy {
            let message = format!("`{}` is not valid UTF-8", shown(path));
            return Err(at_path(ToolError::invalid_path(message), path));
        }
        Ok(decoded.text)
    }

    fn put(directory: &Directory, relative: &str, path: &str, content: &str) -> Result<bool, ToolError> {
        if content.len() as u64 > MAX_FILE {
            return Err(ToolError::limit(format!("`{}` would be larger than 10 MiB", shown(path))));
        }
        if relative == "." || path.ends_with('/') {
            let message = format!("`{}` is a directory; expected the path of a file", shown(path));
            return Err(at_path(ToolError::invalid_path(message), path).suggest("Append the file's name."));
        }
        let write =
            Write { bytes: content.as_bytes(), backup: false, atomic: true, create_directories: true };
        Ok(platform::write(directory, relative, path, &write)?.created)
    }
}

#[tools(category = "file_system", group = "file_system")]
impl FileSystemTool {
    /// List the readable files with their sizes, and whether they are writable.
    #[tool(max_retries = 0, policy(read_only, idempotent))]
    pub fn list(
        &self,
        /// List only matches, for example "*.csv" for names or "data/**/*.json" for paths.
        pattern: Option<String>,
        ctx: &Ctx,
    ) -> Result<PermittedFiles, ToolError> {
        let pattern = pattern.as_deref().map(Pattern::new).transpose()?;
        let options = ListOptions {
            max_depth: 32,
            include_hidden: true,
            pattern: None,
            max_entries: MAX_ENTRIES,
            is_cancelled: &|| ctx.is_cancelled(),
        };
        let (entries, truncated) = platform::list(&self.directory()?, ".", ".", &options)?;
        let mut files: Vec<PermittedFile> = entries
            .into_iter()
            .filter(|entry| entry.kind == EntryKind::File)
            .filter(|entry| pattern.as_ref().is_none_or(|pattern| pattern.matches(&entry.path)))
            .filter_map(|entry| {
                let (permission, _) = self.permission(&entry.path);
                (permission >= FilePermission::Read).then(|| PermittedFile {
                    size: entry.size,
                    writable: permission >= FilePermission::Write,
                    path: entry.path,
                })
            })
            .collect();
        files.sort_by(|left, right| left.path.cmp(&right.path));
        Ok(PermittedFiles { files, truncated })
    }

    /// Read a UTF-8 text file of at most 10 MiB.
    #[tool(max_retries = 0, policy(read_only, idempotent))]
    pub fn read(
        &self,
        /// Path of the file, relative to the root.
        path: String,
    ) -> Result<String, ToolError> {
        let directory = self.directory()?;
        let relative = self.permitted(&directory, &path, FilePermission::Read)?;
        Self::text(&directory, &relative, &path)
    }

    /// Write a text file, replacing its content. Creates missing directories.
    #[tool(policy(destructive))]
    pub fn write(
        &self,
        /// Path of the file, relative to the root.
        path: String,
        /// The whole text of the file.
        content: String,
    ) -> Result<String, ToolError> {
        let directory = self.directory()?;
        let relative = self.permitted(&directory, &path, FilePermission::Write)?;
        let created = Self::put(&directory, &relative, &path, &content)?;
        let done = if created { "Created" } else { "Replaced" };
        Ok(format!("{done} {} ({} bytes)", shown(&path), content.len()))
    }

    /// Replace text in a file. The text must occur exactly once.
    #[tool(policy(destructive))]
    pub fn update(
        &self,
        /// Path of the file, relative to the root.
        path: String,
        /// The text to replace, with enough context to be unique.
        old_text: String,
        /// The replacement.
        new_text: String,
    ) -> Result<String, ToolError> {
        let directory = self.directory()?;
        let relative = self.permitted(&directory, &path, FilePermission::Write)?;
        let text = Self::text(&directory, &relative, &path)?;
        let found = if old_text.is_empty() { 0 } else { text.matches(old_text.as_str()).take(2).count() };
        if found != 1 {
            let message = match found {
                0 => format!("`{}` does not contain the text to replace", shown(&path)),
                _ => format!("`{}` contains the text to replace more than once", shown(&path)),
            };
            return Err(ToolError::invalid_input(message)
                .with("pointer", "/old_text")
                .suggest("Read the file, and pass its exact text with more context."));
        }
        let changed = text.replacen(&old_text, &new_text, 1);
        Self::put(&directory, &relative, &path, &changed)?;
        Ok(format!("Updated {} ({} bytes)", shown(&path), changed.len()))
    }
}
