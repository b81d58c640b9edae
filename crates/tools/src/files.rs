//! Files and folders beneath a root.
#![cfg_attr(
    not(all(target_os = "linux", not(toolpost_simulate_other_host))),
    expect(dead_code, reason = "what is asked for is only looked at where it can be done")
)]

mod budget;
mod list;
mod pattern;
mod permitted;
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
pub use self::permitted::{FilePermission, FileSystemTool, PermittedFile, PermittedFiles};
pub use self::read::{FileText, read_file};
pub use self::root::FileRoot;
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

/// Writes a file that code has made for its user, also into folders that are not there yet. The same rules hold as for
/// [`write_file`].
pub(crate) fn put(folder: &Folder, path: &str, bytes: &[u8]) -> Result<(), ToolError> {
    let relative = folder.relative(path)?;
    let writing = Writing { bytes, backup: false, atomic: true, create_directories: true };
    platform::write(folder, &relative, path, &writing).map(drop)
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

/// Files with their content.
pub(crate) struct Contents {
    /// Paths relative to the folder, and bytes.
    pub(crate) files: Vec<(String, Vec<u8>)>,
    /// How many files are not among them: there were too many, they were too large, or they could not be read.
    pub(crate) left_out: usize,
}

/// The regular files of a folder, hidden ones left aside: at most so many, of so many bytes together. Links are not
/// followed, whoever makes them meanwhile.
pub(crate) fn contents(
    folder: &Folder,
    most_files: usize,
    most_bytes: u64,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Contents, ToolError> {
    let asked =
        Asked { max_depth: 16, include_hidden: false, pattern: None, max_entries: 10_000, is_cancelled };
    let (entries, truncated) = platform::list(folder, ".", ".", &asked)?;
    let mut contents = Contents { files: Vec::new(), left_out: usize::from(truncated) };
    let mut room = most_bytes;
    for entry in entries.into_iter().filter(|entry| entry.kind == EntryKind::File) {
        if contents.files.len() >= most_files || entry.size > room {
            contents.left_out += 1;
            continue;
        }
        match platform::read(folder, &entry.path, &entry.path, room) {
            Ok(found) => {
                room -= (found.bytes.len() as u64).min(room);
                contents.files.push((entry.path, found.bytes));
            }
            Err(_) => contents.left_out += 1,
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
