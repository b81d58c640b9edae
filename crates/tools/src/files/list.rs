//! `list_directory`.

use std::fmt::Write as _;

use toolpost::{Ctx, ToolError, data, tool};

use super::pattern::Pattern;
use super::{Asked, Folder, platform, shown};
use crate::WithText;

/// The most entries of one listing.
const MAX_ENTRIES: usize = 10_000;

/// What an entry of a folder is.
#[data]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A folder.
    Directory,
    /// A symbolic link; it is not followed.
    Symlink,
    /// A pipe, a socket or a device: none of the file tools opens it.
    Special,
}

/// One entry of a folder.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct ListingEntry {
    /// Its path relative to the working folder, as the other file tools take it. Where a name is not UTF-8, U+FFFD
    /// stands in it.
    pub path: String,
    /// What it is.
    pub kind: EntryKind,
    /// Its size in bytes; 0 for all but files.
    pub size: u64,
    /// When it was last changed, such as `2026-11-21T10:00:00.000000Z`.
    pub modified: String,
    /// Where a symbolic link points to, as it is written in the link.
    pub target: Option<String>,
    /// Why the content of this folder is missing below.
    pub note: Option<String>,
}

/// The entries of a folder.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct Listing {
    /// The path that was asked for.
    pub path: String,
    /// The entries, sorted by name; the entries of a folder follow it.
    pub entries: Vec<ListingEntry>,
    /// Whether there are more entries than were listed: at most 10,000 are.
    pub truncated: bool,
}

/// List the entries of a folder with kind, size and time of change.
///
/// Symbolic links are shown and not followed.
#[tool(
    summary = "List directory",
    tags("file", "folder", "directory", "list", "find", "glob"),
    max_retries = 0,
    examples(r#"{"path": ".", "recursive": true, "pattern": "*.csv"}"#),
    policy(category = "file_system", group = "files", read_only, idempotent)
)]
pub fn list_directory(
    /// Path of the folder, relative to the working folder; "." is the working folder itself.
    #[arg(default = ".")]
    path: String,
    /// List the folders inside, too.
    #[arg(default = false)]
    recursive: bool,
    /// List entries whose names begin with a dot, too.
    #[arg(default = false)]
    include_hidden: bool,
    /// List only what matches, for example "*.csv" for names or "data/**/*.{json,txt}" for paths below the folder.
    pattern: Option<String>,
    /// How deep to go when recursive; 1 is the folder alone.
    #[arg(default = 3, min = 1, max = 32)]
    max_depth: u32,
    ctx: &Ctx,
) -> Result<WithText<Listing>, ToolError> {
    let pattern = pattern.as_deref().map(Pattern::new).transpose()?;
    let folder = Folder::of(ctx)?;
    let relative = folder.relative(&path)?;
    let asked = Asked {
        max_depth: if recursive { max_depth } else { 1 },
        include_hidden,
        pattern: pattern.as_ref(),
        max_entries: MAX_ENTRIES,
        is_cancelled: &|| ctx.is_cancelled(),
    };
    let (entries, truncated) = platform::list(&folder, &relative, &path, &asked)?;
    let listing = Listing { path, entries, truncated };
    let text = describe(&listing);
    Ok(WithText::new(listing, text))
}

fn describe(listing: &Listing) -> String {
    let mut text = String::new();
    for entry in &listing.entries {
        let path = escaped(&entry.path);
        // Writing to a string does not fail.
        let _ = match entry.kind {
            EntryKind::File => writeln!(text, "{path}  {} bytes", entry.size),
            EntryKind::Directory => writeln!(text, "{path}/"),
            EntryKind::Symlink => {
                writeln!(text, "{path} -> {}", escaped(entry.target.as_deref().unwrap_or_default()))
            }
            EntryKind::Special => writeln!(text, "{path}  (not a file or folder)"),
        };
        if let Some(note) = &entry.note {
            let _ = writeln!(text, "  [{note}]");
        }
    }
    if listing.truncated {
        let _ = writeln!(
            text,
            "[more than {} entries: the rest is left out; list a folder below, or give a pattern]",
            listing.entries.len()
        );
    }
    if text.is_empty() {
        text = format!("No entries in {}", shown(&listing.path));
    }
    text
}

/// A name on one line: control characters are escaped.
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
