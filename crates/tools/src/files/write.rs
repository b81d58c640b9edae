//! `write_file`.

use toolpost::{Ctx, ToolError, data, tool};

use super::text::TextEncoding;
use super::{Folder, Writing, at_path, platform, shown};
use crate::WithText;

/// What was written.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenFile {
    /// The path that was asked for.
    pub path: String,
    /// How many bytes the file has now.
    pub bytes: u64,
    /// Whether the file did not exist before.
    pub created: bool,
    /// Where the copy of the earlier file lies, relative to the working folder; `null` when there is none.
    pub backup: Option<String>,
}

/// Write a text file, replacing what it held before.
///
/// Symbolic links are never followed. A file that is replaced keeps its permissions.
#[tool(
    summary = "Write file",
    tags("file", "write", "save", "create"),
    examples(r##"{"path": "report.md", "content": "# Report\n"}"##),
    policy(category = "file_system", group = "files", destructive)
)]
pub fn write_file(
    /// Path of the file, relative to the working folder, for example "out/report.md".
    path: String,
    /// The whole text of the file.
    content: String,
    /// Name of the encoding to write, for example "utf-8", "utf-8-sig" (with byte order mark) or "windows-1252".
    #[arg(default = "utf-8")]
    encoding: String,
    /// Keep a copy of the file that is replaced, beside it, named with ".backup" at its end.
    #[arg(default = true)]
    create_backup: bool,
    /// Replace the file in one step, so that nobody sees half of it, even after a crash. False writes into the
    /// existing file, which may stay half written.
    #[arg(default = true)]
    atomic: bool,
    /// Make missing folders of the path.
    #[arg(default = false)]
    create_directories: bool,
    ctx: &Ctx,
) -> Result<WithText<WrittenFile>, ToolError> {
    let bytes = TextEncoding::named(&encoding)?.encode(&content)?;
    let folder = Folder::of(ctx)?;
    let relative = folder.relative(&path)?;
    if relative == "." || path.ends_with('/') {
        let message = format!("`{}` is a folder: expected the path of a file", shown(&path));
        return Err(at_path(ToolError::invalid_path(message), &path).suggest("Add the name of the file."));
    }
    let writing = Writing { bytes: &bytes, backup: create_backup, atomic, create_directories };
    let written = platform::write(&folder, &relative, &path, &writing)?;
    let backup = written.backup.map(|name| match relative.rsplit_once('/') {
        Some((parent, _)) => format!("{parent}/{name}"),
        None => name,
    });
    let value = WrittenFile { path, bytes: bytes.len() as u64, created: written.created, backup };
    let done = if value.created { "Created" } else { "Replaced" };
    let kept = value.backup.as_deref().map(|backup| format!("; the earlier file is {}", shown(backup)));
    let text = format!("{done} {} ({} bytes){}", shown(&value.path), value.bytes, kept.unwrap_or_default());
    Ok(WithText::new(value, text))
}
