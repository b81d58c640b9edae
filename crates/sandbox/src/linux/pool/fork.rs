//! The code that makes the children of a zygote (`shim/fork.rs`), as an image for its memory.

use std::io;
use std::sync::OnceLock;

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};

use super::super::launch;

/// The program, empty if it could not be built.
static PROGRAM: &[u8] = include_bytes!(env!("TOOLPOST_SANDBOX_FORK"));
/// More is no such program.
const LARGEST: usize = 1 << 20;

/// A program's parts, each where it stands in memory.
#[derive(Debug, PartialEq, Eq)]
struct Image {
    content: Vec<u8>,
    /// Where its first instruction stands.
    entry: usize,
}

impl Image {
    /// Takes a static program apart: 64 bits, this machine's byte order, nothing to put right.
    fn new(program: &[u8]) -> Option<Self> {
        const LOAD: usize = 1;
        let number = |at: usize, size: usize| -> Option<usize> {
            let mut bytes = [0u8; 8];
            bytes.get_mut(..size)?.copy_from_slice(program.get(at..at.checked_add(size)?)?);
            usize::try_from(u64::from_le_bytes(bytes)).ok()
        };
        if !program.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let (entry, table) = (number(24, 8)?, number(32, 8)?);
        let (size, count) = (number(54, 2)?, number(56, 2)?);
        let mut parts = Vec::new();
        for index in 0..count {
            let at = table + index * size;
            if number(at, 4)? == LOAD {
                let (from, to, length) = (number(at + 8, 8)?, number(at + 16, 8)?, number(at + 32, 8)?);
                parts.push((to, program.get(from..from.checked_add(length)?)?));
            }
        }
        let first = parts.iter().map(|(to, _)| *to).min()? & !0xfff;
        let mut content = Vec::new();
        for (to, part) in parts {
            let (from, to) = (to - first, (to - first).checked_add(part.len())?);
            if to > LARGEST {
                return None;
            }
            if content.len() < to {
                content.resize(to, 0);
            }
            content.get_mut(from..to)?.copy_from_slice(part);
        }
        let entry = entry.checked_sub(first).filter(|entry| *entry < content.len())?;
        Some(Self { content, entry })
    }
}

/// The image in a sealed file, its size, and where its first instruction stands.
pub(super) fn image() -> io::Result<(BorrowedFd<'static>, usize, usize)> {
    static MADE: OnceLock<Result<(OwnedFd, usize, usize), i32>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let image = Image::new(PROGRAM).ok_or(libc::ENOEXEC)?;
        let file = launch::sealed(c"fork", &image.content, true)
            .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        Ok((file, image.content.len(), image.entry))
    });
    match made {
        Ok((file, size, entry)) => Ok((file.as_fd(), *size, *entry)),
        Err(error) => Err(io::Error::from_raw_os_error(*error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_is_there_and_needs_nothing_to_be_put_right() {
        let image = Image::new(PROGRAM).unwrap();
        assert!(image.content.len() < 64 << 10 && image.entry > 0, "{}", image.content.len());
        // No part that can be written to, and none that a linker at run time would read.
        let kinds: Vec<(u32, u32)> = (0..u16::from_le_bytes([PROGRAM[56], PROGRAM[57]]))
            .map(|index| {
                let at = 64 + usize::from(index) * 56;
                let number = |at: usize| u32::from_le_bytes(PROGRAM[at..at + 4].try_into().unwrap());
                (number(at), number(at + 4))
            })
            .collect();
        assert!(kinds.iter().all(|(kind, _)| *kind != 2 && *kind != 3), "{kinds:?}");
        assert!(kinds.iter().all(|(kind, flags)| *kind != 1 || flags & 2 == 0), "{kinds:?}");
    }

    #[test]
    fn what_is_no_program_is_none() {
        assert_eq!(Image::new(b""), None);
        assert_eq!(Image::new(b"\x7fELF\x02\x01"), None);
        let mut broken = PROGRAM.to_vec();
        broken.truncate(100);
        assert_eq!(Image::new(&broken), None);
    }
}
