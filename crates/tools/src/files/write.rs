//! `write_file`.

use toolpost::{Ctx, ToolError, data, tool};

use super::text::TextEncoding;
use super::{Directory, Write, at_path, platform, shown};
use crate::WithText;

/// The result of a write.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenFile {
    /// The requested path.
    pub path: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Whether the file is new.
    pub created: bool,
    /// Path of the backup, relative to the working directory; `null` without one.
    pub backup: Option<String>,
}

/// Write a text file, replacing its content.
///
/// Never follows symbolic links. A replaced file keeps its permissions.
#[tool(
    summary = "Write file",
    tags("file", "write", "save", "create"),
    examples(r##"{"path": "report.md", "content": "# Report\n"}"##),
    policy(category = "file_system", group = "files", destructive)
)]
pub fn write_file(
    /// Path of the file, relative to the working directory, for example "out/report.md".
    path: String,
    /// The whole text of the file.
    content: String,
    /// Name of the encoding to write, for example "utf-8", "utf-8-sig" (with byte order mark) or "windows-1252".
    #[arg(default = "utf-8")]
    encoding: String,
    /// Keep a backup of a replaced file beside it, named with ".backup" at its end.
    #[arg(default = false)]
    create_backup: bool,
    /// Replace the file atomically, even in a crash. False writes into the existing file, which a crash may leave half
    /// written.
    #[arg(default = true)]
    atomic: bool,
    /// Create missing directories of the path.
    #[arg(default = false)]
    create_directories: bool,
    ctx: &Ctx,
) -> Result<WithText<WrittenFile>, ToolError> {
    let bytes = TextEncoding::named(&encoding)?.encode(&content)?;
    let directory = Directory::from_ctx(ctx)?;
    let relative = directory.relative(&path)?;
    if relative == "." || path.ends_with('/') {
        let message = format!("`{}` is a directory; expected the path of a file", shown(&path));
        return Err(at_path(ToolError::invalid_path(message), &path).suggest("Append the file's name."));
    }
    let write = Write { bytes: &bytes, backup: create_backup, atomic, create_directories };
    let written = platform::write(&directory, &relative, &path, &write)?;
    let backup = written.backup.map(|name| match relative.rsplit_once('/') {
        Some((parent, _)) => format!("{parent}/{name}"),
        None => name,
    });
    let value = WrittenFile { path, bytes: bytes.len() as u64, created: written.created, backup };
    let done = if value.created { "Created" } else { "Replaced" };
    let note = value.backup.as_deref().map(|backup| format!("; backup: {}", shown(backup)));
    let text = format!("{done} {} ({} bytes){}", shown(&value.path), value.bytes, note.unwrap_or_default());
    Ok(WithText::new(value, text))
}
