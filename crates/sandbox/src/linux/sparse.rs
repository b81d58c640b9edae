//! Copies files with their holes: a program can create a terabyte file that uses no space.

use std::fs::File;
use std::io::{self, Read as _};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Copies the first `size` bytes of `from` to the empty file `to`, preserving holes.
pub(super) fn copy(from: &File, to: &File, size: u64) -> io::Result<()> {
    let mut end = 0;
    while end < size {
        let begin = match rustix::fs::seek(from, SeekFrom::Data(end)) {
            Ok(begin) => begin,
            // Only a hole is left.
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        end = rustix::fs::seek(from, SeekFrom::Hole(begin))?.min(size);
        if begin >= end {
            break;
        }
        rustix::fs::seek(from, SeekFrom::Start(begin))?;
        rustix::fs::seek(to, SeekFrom::Start(begin))?;
        io::copy(&mut from.take(end - begin), &mut &*to)?;
    }
    to.set_len(size)
}
