//! `read_file`.

use toolpost::{Ctx, ToolError, data, tool};

use super::text::TextEncoding;
use super::{read_text, shown};
use crate::WithText;

/// What was read of a text file.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct FileText {
    /// The path that was asked for.
    pub path: String,
    /// The text: the whole file, or the lines that were asked for.
    pub content: String,
    /// The encoding that it was decoded from; `write_file` takes this name. `-sig` means a byte order mark.
    pub encoding: String,
    /// The size of the file in bytes.
    pub size: u64,
    /// How many lines the whole file has.
    pub lines: u64,
    /// The number of the first line in `content`, from 1.
    pub first_line: u64,
    /// Whether `content` ends before the file does, because of `limit`.
    pub truncated: bool,
    /// Whether some bytes meant nothing in the encoding and stand in `content` as U+FFFD.
    pub lossy: bool,
}

/// Read a text file.
///
/// The encoding is detected. Long files can be read in pieces with `offset` and `limit`. Files that are not text are
/// refused: run code to work with those.
#[tool(
    summary = "Read file",
    tags("file", "read", "text", "open"),
    max_retries = 0,
    examples(r#"{"path": "sales.csv"}"#),
    policy(category = "file_system", group = "files", read_only, idempotent)
)]
pub fn read_file(
    /// Path of the file, relative to the working folder, for example "data/sales.csv".
    path: String,
    /// Name of the encoding, for example "utf-8" or "windows-1252"; "auto" detects it.
    #[arg(default = "auto")]
    encoding: String,
    /// Refuse files larger than this many MiB.
    #[arg(default = 10, min = 1, max = 100)]
    max_size_mb: u32,
    /// Number of the first line to read, from 1.
    #[arg(default = 1, min = 1)]
    offset: u64,
    /// How many lines to read; all when left out.
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
    let wanted = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    if offset > 1 && offset > lines {
        let message =
            format!("the first line asked for is {offset}, and `{}` has {lines} lines", shown(&path));
        return Err(ToolError::invalid_input(message)
            .with("pointer", "/offset")
            .with("lines", lines)
            .suggest("Ask for an earlier line."));
    }
    let content: String = read.text.split_inclusive('\n').skip(skipped).take(wanted).collect();
    let truncated = (skipped as u64).saturating_add(wanted as u64) < lines;
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
