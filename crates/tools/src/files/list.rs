//! `list_directory`.

use std::fmt::Write as _;

use toolpost::{Ctx, ToolError, Truncation, data, tool};

use super::pattern::Pattern;
use super::{Directory, ListOptions, platform, shown};
use crate::WithText;

/// Maximum number of entries in a listing.
const MAX_ENTRIES: usize = 10_000;

/// The kind of a directory entry.
#[data]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, which is not followed.
    Symlink,
    /// A pipe, socket or device, which the file tools do not open.
    Special,
}

/// A directory entry.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct ListingEntry {
    /// Path relative to the working directory, as the other file tools take it. Invalid UTF-8 becomes U+FFFD.
    pub path: String,
    /// Kind of the entry.
    pub kind: EntryKind,
    /// Size in bytes; 0 unless it is a file.
    pub size: u64,
    /// Modification time, such as `2026-11-21T10:00:00.000000Z`.
    pub modified: String,
    /// Target of a symbolic link, as stored in the link.
    pub target: Option<String>,
    /// The reason why the content of this directory is not listed.
    pub note: Option<String>,
}

/// The entries of a directory.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct Listing {
    /// The requested path.
    pub path: String,
    /// Entries sorted by name; the entries of a subdirectory follow it.
    pub entries: Vec<ListingEntry>,
    /// Whether there are more entries; the maximum is 10,000.
    pub truncated: bool,
}

/// List the entries of a directory with kind, size and modification time.
///
/// Symbolic links are listed but not followed.
#[tool(
    summary = "List directory",
    tags("file", "directory", "directory", "list", "find", "glob"),
    max_retries = 0,
    examples(r#"{"path": ".", "recursive": true, "pattern": "*.csv"}"#),
    policy(category = "file_system", group = "files", read_only, idempotent)
)]
pub fn list_directory(
    /// Path of the directory, relative to the working directory; "." is the working directory itself.
    #[arg(default = ".")]
    path: String,
    /// List subdirectories as well.
    #[arg(default = false)]
    recursive: bool,
    /// List entries with a leading dot as well.
    #[arg(default = false)]
    include_hidden: bool,
    /// List only matches, for example "*.csv" for names or "data/**/*.{json,txt}" for paths beneath the directory.
    pattern: Option<String>,
    /// Maximum depth if recursive; 1 is the directory alone.
    #[arg(default = 3, min = 1, max = 32)]
    max_depth: u32,
    ctx: &Ctx,
) -> Result<WithText<Listing>, ToolError> {
    let pattern = pattern.as_deref().map(Pattern::new).transpose()?;
    let directory = Directory::from_ctx(ctx)?;
    let relative = directory.relative(&path)?;
    let options = ListOptions {
        max_depth: if recursive { max_depth } else { 1 },
        include_hidden,
        pattern: pattern.as_ref(),
        max_entries: MAX_ENTRIES,
        is_cancelled: &|| ctx.is_cancelled(),
    };
    let (entries, truncated) = platform::list(&directory, &relative, &path, &options)?;
    let listing = Listing { path, entries, truncated };
    let text = describe(&listing);
    let returned = listing.entries.len() as u64;
    let part = listing.truncated.then(|| Truncation::items("/entries", returned));
    Ok(WithText { truncated: part.into_iter().collect(), ..WithText::new(listing, text) })
}

fn describe(listing: &Listing) -> String {
    let mut text = String::new();
    for entry in &listing.entries {
        let path = escaped(&entry.path);
        // Write to a string cannot fail.
        let _ = match entry.kind {
            EntryKind::File => writeln!(text, "{path}  {} bytes", entry.size),
            EntryKind::Directory => writeln!(text, "{path}/"),
            EntryKind::Symlink => {
                writeln!(text, "{path} -> {}", escaped(entry.target.as_deref().unwrap_or_default()))
            }
            EntryKind::Special => writeln!(text, "{path}  (not a file or directory)"),
        };
        if let Some(note) = &entry.note {
            let _ = writeln!(text, "  [{note}]");
        }
    }
    if listing.truncated {
        let _ = writeln!(
            text,
            "[more than {} entries; list a subdirectory, or use a pattern]",
            listing.entries.len()
        );
    }
    if text.is_empty() {
        text = format!("No entries in {}", shown(&listing.path));
    }
    text
}

/// A name on one line, with control characters escaped.
fn escaped(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for letter in name.chars() {
        if letter.is_control() {
            text.extend(letter.escape_default());
        } else {
            text.push(letter);
        }
    }
    text
}
