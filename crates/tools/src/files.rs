//! Files and folders beneath a root.
#![cfg_attr(
    not(all(target_os = "linux", not(toolpost_simulate_other_host))),
    expect(dead_code, reason = "what is asked for is only looked at where it can be done")
)]

mod list;
mod pattern;
mod read;
mod root;
mod text;
mod write;

#[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
#[path = "files/linux.rs"]
mod platform;
#[cfg(not(all(target_os = "linux", not(toolpost_simulate_other_host))))]
#[path = "files/other.rs"]
mod platform;

pub use self::list::{EntryKind, Listing, ListingEntry, list_directory};
pub use self::read::{FileText, read_file};
pub use self::root::{FileRoot, PROTECTED_PATHS};
pub(crate) use self::root::{Folder, shown};
pub(crate) use self::text::TextEncoding;
pub use self::write::{WrittenFile, write_file};

use toolpost::{Ctx, ToolError};

use self::text::{Decoded, decode};

/// What is read of a file, and what its folder said of it.
struct Found {
    bytes: Vec<u8>,
    /// Bytes that the file had when it was opened.
    size: u64,
}

/// What is to be written.
struct Writing<'a> {
    bytes: &'a [u8],
    backup: bool,
    atomic: bool,
    create_directories: bool,
}

/// What was done to write.
struct Written {
    created: bool,
    /// The name of the copy, in the folder of the file.
    backup: Option<String>,
}

/// Which entries of a folder are asked for.
struct Asked<'a> {
    max_depth: u32,
    include_hidden: bool,
    pattern: Option<&'a pattern::Pattern>,
    max_entries: usize,
    is_cancelled: &'a dyn Fn() -> bool,
}

/// A text file as it was read.
pub(crate) struct ReadText {
    pub(crate) text: String,
    /// The name of its encoding.
    encoding: String,
    /// Some bytes mean nothing in the encoding.
    lossy: bool,
    /// Bytes that the file had when it was opened.
    size: u64,
}

/// Reads a text file beneath the root of a call, of at most so many bytes; without an encoding it is detected.
pub(crate) fn read_text(
    ctx: &Ctx,
    path: &str,
    encoding: Option<TextEncoding>,
    limit: u64,
) -> Result<ReadText, ToolError> {
    let folder = Folder::of(ctx)?;
    let relative = folder.relative(path)?;
    let found = platform::read(&folder, &relative, path, limit)?;
    let Decoded { text, encoding, lossy } = decode(&found.bytes, encoding).map_err(|reason| {
        let message = format!("`{}` ({}) is not a text file: {reason}", shown(path), megabytes(found.size));
        at_path(ToolError::invalid_path(message), path)
            .suggest("Run code to work with it, or name its `encoding` if it is text.")
    })?;
    Ok(ReadText { text, encoding, lossy, size: found.size })
}

/// An error about the argument `path`.
fn at_path(error: ToolError, path: &str) -> ToolError {
    error.with("pointer", "/path").with("path", shown(path))
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
