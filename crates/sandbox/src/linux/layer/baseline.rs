//! The entries of a private copy as they were copied, to find its changes.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fd::BorrowedFd;
use rustix::fs::{Mode, OFlags, Stat};

use super::super::files::open_beneath;
use super::view::identity;
use super::{held, path_of};

/// The list of copied entries.
pub(super) const BASELINE: &str = "baseline";
/// The maximum size of all paths in a copy.
pub(super) const MAX_PATH_BYTES: u64 = 256 << 20;

/// The original state of a path, in the finished copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copied {
    Directory {
        mode: u32,
    },
    /// A file or link: its inode in the copy, size, and the seconds and nanoseconds of its change time.
    Entry(u64, i64, i64, i64),
    /// It was not copied, and so never changes.
    Skipped,
}

impl Copied {
    pub(super) fn entry(stat: &Stat) -> Self {
        let (inode, size, seconds, nanoseconds) = identity(stat);
        Self::Entry(inode, size, seconds, nanoseconds)
    }
}

/// Sorted: each path precedes its descendants.
pub(super) type Baseline = BTreeMap<PathBuf, Copied>;

/// Whether a path or a descendant was not copied.
pub(super) fn has_skipped(baseline: &Baseline, path: &Path) -> bool {
    let at_or_beneath = baseline.range(path.to_owned()..).take_while(|(inner, _)| inner.starts_with(path));
    at_or_beneath.into_iter().any(|(_, copied)| *copied == Copied::Skipped)
}

/// Writes the list of copied entries.
pub(super) fn store(directory: BorrowedFd<'_>, baseline: &Baseline) -> io::Result<()> {
    let mut content = Vec::new();
    for (path, copied) in baseline {
        let numbers = match copied {
            Copied::Directory { mode } => format!("d {mode} "),
            Copied::Entry(inode, size, seconds, nanoseconds) => {
                format!("e {} {size} {seconds} {nanoseconds} ", inode.cast_signed())
            }
            Copied::Skipped => "s ".to_owned(),
        };
        content.extend_from_slice(numbers.as_bytes());
        content.extend_from_slice(path.as_os_str().as_bytes());
        // Paths contain no NUL.
        content.push(0);
    }
    held::replace(directory, BASELINE, &content)
}

/// Reads the list of copied entries.
pub(super) fn load(directory: BorrowedFd<'_>) -> io::Result<Baseline> {
    /// The metadata of a path is shorter than all of the paths.
    const MAX_LIST: u64 = 2 * MAX_PATH_BYTES;
    let file = open_beneath(directory, Path::new(BASELINE), OFlags::RDONLY, Mode::empty())?;
    let mut content = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(std::fs::File::from(file), MAX_LIST), &mut content)?;
    let rows = content.split(|byte| *byte == 0).filter(|row| !row.is_empty());
    rows.map(|row| parse(row).ok_or_else(|| io::ErrorKind::InvalidData.into())).collect()
}

fn parse(row: &[u8]) -> Option<(PathBuf, Copied)> {
    let count = match row.first()? {
        b'd' => 2,
        b'e' => 5,
        _ => 1,
    };
    let mut parts = row.splitn(count + 1, |byte| *byte == b' ');
    let _kind = parts.next()?;
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<i64>().ok();
    let copied = match count {
        2 => Copied::Directory { mode: u32::try_from(number()?).ok()? },
        5 => Copied::Entry(number()?.cast_unsigned(), number()?, number()?, number()?),
        _ => Copied::Skipped,
    };
    Some((path_of(parts.next()?), copied))
}
