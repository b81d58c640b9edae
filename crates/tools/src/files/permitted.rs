//! Files of one folder, as far as rules permit.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use toolpost::{Ctx, ToolError, data, tools};

use super::pattern::Pattern;
use super::text::{TextEncoding, decode};
use super::{Asked, EntryKind, FileRoot, Folder, Writing, at_path, megabytes, platform, shown};

/// The largest file that is read or changed, in bytes.
const MAX_FILE: u64 = 10 << 20;
/// The most entries that are looked at for a list.
const MAX_ENTRIES: usize = 10_000;

/// What may be done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FilePermission {
    /// Nothing: it is as if it were not there.
    None,
    /// It can be listed and read.
    Read,
    /// It can be listed, read, made and changed.
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
                "`{}` is no permission: expected `none`, `read` or `write`",
                shown(text)
            ))),
        }
    }
}

/// The tools `list`, `read`, `write` and `update` for files beneath a root, as far as rules permit.
///
/// A rule is a pattern and a permission. The rules are looked at from the last to the first, and the first one that fits
/// decides, alone: what comes later is the exception from what comes before. What no rule fits is not permitted. A
/// pattern is compared with the whole path relative to the root: `*.txt` is a file of the root itself, `**/*.txt` one at
/// any depth, `data/**` everything beneath `data`.
///
/// A link is never followed, in no part of a path, so that a name that is permitted cannot lead to one that is not.
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

/// A file that may be read.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct PermittedFile {
    /// Its path relative to the root.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
    /// Whether it may be changed.
    pub writable: bool,
}

/// The files that may be read.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct PermittedFiles {
    /// The files, sorted by path.
    pub files: Vec<PermittedFile>,
    /// Whether there are more: at most 10,000 entries are looked at.
    pub truncated: bool,
}

impl FileSystemTool {
    /// Files beneath a root, which must exist when a tool is called, with rules from the most general to the most
    /// special. Protected paths ([`toolpost_sandbox::protection`]) are not written, whatever the rules say.
    ///
    /// # Errors
    /// `INVALID_INPUT` if a pattern cannot be read.
    pub fn new<P: AsRef<str>>(
        root: impl Into<PathBuf>,
        rules: impl IntoIterator<Item = (P, FilePermission)>,
    ) -> Result<Self, ToolError> {
        Self::with_root(FileRoot::new(root), rules)
    }

    /// The same with a root for which the operator allows some protected paths.
    ///
    /// # Errors
    /// `INVALID_INPUT` if a pattern cannot be read.
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

    /// What may be done with a path relative to the root, and the rule that says so.
    fn permission(&self, relative: &str) -> (FilePermission, Option<&str>) {
        let rule = self.rules.iter().rev().find(|rule| rule.pattern.matches_path(relative));
        rule.map_or((FilePermission::None, None), |rule| (rule.permission, Some(&rule.text)))
    }

    fn folder(&self) -> Result<Folder, ToolError> {
        Folder::strict(&self.root)
    }

    /// The path relative to the root, if so much may be done with it. Asked before the disk is.
    fn permitted(&self, folder: &Folder, path: &str, wanted: FilePermission) -> Result<String, ToolError> {
        let relative = folder.relative(path)?;
        let (permission, rule) = self.permission(&relative);
        if permission >= wanted {
            return Ok(relative);
        }
        let what = if wanted == FilePermission::Write { "written" } else { "read" };
        let why = match rule {
            Some(rule) => format!("the rule `{}` does not permit it", shown(rule)),
            None => "no rule permits it".to_owned(),
        };
        let error = ToolError::permission(format!("`{}` is not {what}: {why}", shown(path)));
        Err(at_path(error, path).suggest("List the files to see which ones you may use."))
    }

    fn text(folder: &Folder, relative: &str, path: &str) -> Result<String, ToolError> {
        let found = platform::read(folder, relative, path, MAX_FILE)?;
        let decoded = decode(&found.bytes, Some(TextEncoding::named("utf-8")?)).map_err(|reason| {
            let message =
                format!("`{}` ({}) is not a text file: {reason}", shown(path), megabytes(found.size));
            at_path(ToolError::invalid_path(message), path)
        })?;
        if decoded.lossy {
            let message = format!("`{}` is not text in UTF-8", shown(path));
            return Err(at_path(ToolError::invalid_path(message), path));
        }
        Ok(decoded.text)
    }

    fn put(folder: &Folder, relative: &str, path: &str, content: &str) -> Result<bool, ToolError> {
        if content.len() as u64 > MAX_FILE {
            return Err(ToolError::limit(format!("`{}` would be larger than 10 MiB", shown(path))));
        }
        if relative == "." || path.ends_with('/') {
            let message = format!("`{}` is a folder: expected the path of a file", shown(path));
            return Err(at_path(ToolError::invalid_path(message), path).suggest("Add the name of the file."));
        }
        let writing =
            Writing { bytes: content.as_bytes(), backup: false, atomic: true, create_directories: true };
        Ok(platform::write(folder, relative, path, &writing)?.created)
    }
}

#[tools(category = "file_system", group = "file_system")]
impl FileSystemTool {
    /// List the files that may be read, with their sizes and whether they may be changed.
    #[tool(max_retries = 0, policy(read_only, idempotent))]
    pub fn list(
        &self,
        /// List only what matches, for example "*.csv" for names or "data/**/*.json" for paths.
        pattern: Option<String>,
        ctx: &Ctx,
    ) -> Result<PermittedFiles, ToolError> {
        let pattern = pattern.as_deref().map(Pattern::new).transpose()?;
        let asked = Asked {
            max_depth: 32,
            include_hidden: true,
            pattern: None,
            max_entries: MAX_ENTRIES,
            is_cancelled: &|| ctx.is_cancelled(),
        };
        let (entries, truncated) = platform::list(&self.folder()?, ".", ".", &asked)?;
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

    /// Read a text file of at most 10 MiB, in UTF-8.
    #[tool(max_retries = 0, policy(read_only, idempotent))]
    pub fn read(
        &self,
        /// Path of the file, relative to the root.
        path: String,
    ) -> Result<String, ToolError> {
        let folder = self.folder()?;
        let relative = self.permitted(&folder, &path, FilePermission::Read)?;
        Self::text(&folder, &relative, &path)
    }

    /// Write a text file, replacing what it held before. Missing folders are made.
    #[tool(policy(destructive))]
    pub fn write(
        &self,
        /// Path of the file, relative to the root.
        path: String,
        /// The whole text of the file.
        content: String,
    ) -> Result<String, ToolError> {
        let folder = self.folder()?;
        let relative = self.permitted(&folder, &path, FilePermission::Write)?;
        let created = Self::put(&folder, &relative, &path, &content)?;
        let done = if created { "Created" } else { "Replaced" };
        Ok(format!("{done} {} ({} bytes)", shown(&path), content.len()))
    }

    /// Replace a text in a file. The text must stand there once, exactly as given.
    #[tool(policy(destructive))]
    pub fn update(
        &self,
        /// Path of the file, relative to the root.
        path: String,
        /// The text to replace, with enough around it to stand there once.
        old_text: String,
        /// What stands there afterwards.
        new_text: String,
    ) -> Result<String, ToolError> {
        let folder = self.folder()?;
        let relative = self.permitted(&folder, &path, FilePermission::Write)?;
        let text = Self::text(&folder, &relative, &path)?;
        let found = if old_text.is_empty() { 0 } else { text.matches(old_text.as_str()).take(2).count() };
        if found != 1 {
            let message = match found {
                0 => format!("the text to replace does not stand in `{}`", shown(&path)),
                _ => format!("the text to replace stands in `{}` more than once", shown(&path)),
            };
            return Err(ToolError::invalid_input(message)
                .with("pointer", "/old_text")
                .suggest("Read the file, and give the text as it stands there with more around it."));
        }
        let changed = text.replacen(&old_text, &new_text, 1);
        Self::put(&folder, &relative, &path, &changed)?;
        Ok(format!("Updated {} ({} bytes)", shown(&path), changed.len()))
    }
}
