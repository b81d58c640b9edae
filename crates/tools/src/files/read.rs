//! `read_file`.

use toolpost::{Ctx, ToolError, data, tool};

use super::text::TextEncoding;
use super::{read_text, shown};
use crate::WithText;

/// The content of a text file.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct FileText {
    /// The requested path.
    pub path: String,
    /// The text of the file, or the requested lines.
    pub content: String,
    /// The encoding, as `write_file` takes it. `-sig` means a byte order mark.
    pub encoding: String,
    /// Size of the file in bytes.
    pub size: u64,
    /// Number of lines in the file.
    pub lines: u64,
    /// Number of the first line in `content`, from 1.
    pub first_line: u64,
    /// Whether `limit` truncated `content`.
    pub truncated: bool,
    /// Whether some bytes are invalid in the encoding, and U+FFFD in `content`.
    pub lossy: bool,
}

/// Read a text file.
///
/// Detects the encoding. Read long files in parts with `offset` and `limit`. Binary files are rejected: run code to
/// process those.
#[tool(
    summary = "Read file",
    tags("file", "read", "text", "open"),
    max_retries = 0,
    examples(r#"{"path": "sales.csv"}"#),
    policy(category = "file_system", group = "files", read_only, idempotent)
)]
pub fn read_file(
    /// Path of the file, relative to the working directory, for example "data/sales.csv".
    path: String,
    /// Name of the encoding, for example "utf-8" or "windows-1252"; "auto" detects it.
    #[arg(default = "auto")]
    encoding: String,
    /// Reject files larger than this many MiB.
    #[arg(default = 10, min = 1, max = 100)]
    max_size_mb: u32,
    /// Number of the first line to read, from 1.
    #[arg(default = 1, min = 1)]
    offset: u64,
    /// Maximum number of lines; all by default.
    #[arg(min = 1)]
    limit: Option<u64>,
    ctx: &Ctx,
) -> Result<WithText<FileText>, ToolError> {
    let encoding = match encoding.trim() {
        "auto" => None,
        name => Some(TextEncoding::named(name)?),
    };
    let read = read_text(ctx, &path, encoding, u64::from(max_size_mb) << 20)?;
    let lines = read.text.lines().count() as u64;
    let skipped = usize::try_from(offset - 1).unwrap_or(usize::MAX);
    let count = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    if offset > 1 && offset > lines {
        let message = format!("`offset` is {offset}, but `{}` has {lines} lines", shown(&path));
        return Err(ToolError::invalid_input(message)
            .with("pointer", "/offset")
            .with("lines", lines)
            .suggest("Start at an earlier line."));
    }
    let content: String = read.text.split_inclusive('\n').skip(skipped).take(count).collect();
    let truncated = (skipped as u64).saturating_add(count as u64) < lines;
    let value = FileText {
        path,
        encoding: read.encoding,
        size: read.size,
        lines,
        first_line: offset,
        truncated,
        lossy: read.lossy,
        content,
    };
    let text = value.content.clone();
    Ok(WithText::new(value, text))
}
