//! Files and directories beneath a root.
#![cfg_attr(
    not(all(target_os = "linux", not(toolpost_simulate_other_host))),
    expect(dead_code, reason = "used only where the file tools are supported")
)]

mod budget;
mod list;
mod outputs;
mod pattern;
mod permitted;
#[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
mod protected_files;
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
pub use self::outputs::OutputDirectory;
pub use self::permitted::{FilePermission, FileSystemTool, PermittedFile, PermittedFiles};
pub use self::read::{FileText, read_file};
pub use self::root::FileRoot;
pub(crate) use self::root::{Directory, shown};
pub(crate) use self::text::TextEncoding;
pub use self::write::{WrittenFile, write_file};

use toolpost::{Ctx, ToolError};

use self::text::{Decoded, decode};

/// The content of a file.
struct FileContent {
    bytes: Vec<u8>,
    /// Size when the file was opened, in bytes.
    size: u64,
}

/// A write operation.
struct Write<'a> {
    bytes: &'a [u8],
    backup: bool,
    atomic: bool,
    create_directories: bool,
}

/// Writes a file that code created for its user, and creates its parents. The rules of [`write_file`] apply.
pub(crate) fn put(directory: &Directory, path: &str, bytes: &[u8]) -> Result<(), ToolError> {
    let relative = directory.relative(path)?;
    let write = Write { bytes, backup: false, atomic: true, create_directories: true };
    platform::write(directory, &relative, path, &write).map(drop)
}

/// The result of a write operation.
struct Written {
    created: bool,
    /// Name of the backup, in the file's directory.
    backup: Option<String>,
}

/// Options of a listing.
struct ListOptions<'a> {
    max_depth: u32,
    include_hidden: bool,
    pattern: Option<&'a pattern::Pattern>,
    max_entries: usize,
    is_cancelled: &'a dyn Fn() -> bool,
}

/// A decoded text file.
pub(crate) struct TextFile {
    pub(crate) text: String,
    /// Name of the encoding.
    encoding: String,
    /// Whether some bytes are invalid in the encoding.
    lossy: bool,
    /// Size when the file was opened, in bytes.
    size: u64,
}

/// Reads a text file of at most `limit` bytes, also one of the output files; without an encoding, detects it.
pub(crate) fn read_text(
    ctx: &Ctx,
    path: &str,
    encoding: Option<TextEncoding>,
    limit: u64,
) -> Result<TextFile, ToolError> {
    let directory = Directory::read_by(ctx, path)?;
    let relative = directory.relative(path)?;
    let found = platform::read(&directory, &relative, path, limit)?;
    let Decoded { text, encoding, lossy } = decode(&found.bytes, encoding).map_err(|reason| {
        let message = format!("`{}` ({}) is not a text file: {reason}", shown(path), megabytes(found.size));
        at_path(ToolError::invalid_path(message), path)
            .suggest("Run code to process it, or name its `encoding` if it is text.")
    })?;
    Ok(TextFile { text, encoding, lossy, size: found.size })
}

/// Files with their content.
pub(crate) struct Contents {
    /// Relative paths and bytes.
    pub(crate) files: Vec<(String, Vec<u8>)>,
    /// Number of files that are too many, too large or unreadable.
    pub(crate) omitted: usize,
}

/// The regular, visible files of a directory, within limits for their number and total size. Links are not followed.
pub(crate) fn contents(
    directory: &Directory,
    max_files: usize,
    max_bytes: u64,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Contents, ToolError> {
    let options = ListOptions {
        max_depth: 16,
        include_hidden: false,
        pattern: None,
        max_entries: 10_000,
        is_cancelled,
    };
    let (entries, truncated) = platform::list(directory, ".", ".", &options)?;
    let mut contents = Contents { files: Vec::new(), omitted: usize::from(truncated) };
    let mut room = max_bytes;
    for entry in entries.into_iter().filter(|entry| entry.kind == EntryKind::File) {
        if contents.files.len() >= max_files || entry.size > room {
            contents.omitted += 1;
            continue;
        }
        match platform::read(directory, &entry.path, &entry.path, room) {
            Ok(found) => {
                room -= (found.bytes.len() as u64).min(room);
                contents.files.push((entry.path, found.bytes));
            }
            Err(_) => contents.omitted += 1,
        }
    }
    Ok(contents)
}

/// An error about the argument `path`.
fn at_path(error: ToolError, path: &str) -> ToolError {
    error.with("pointer", "/path").with("path", shown(path))
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
