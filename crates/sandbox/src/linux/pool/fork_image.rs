//! The program that forks a zygote's children (`shim/fork.rs`), as a memory image.

use std::io;
use std::sync::OnceLock;

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};

use super::super::launch;

/// The program, empty if it was not built.
static PROGRAM: &[u8] = include_bytes!(env!("TOOLPOST_SANDBOX_FORK"));
/// The maximum size in bytes.
const MAX_SIZE: usize = 1 << 20;

/// The parts of a program with their addresses.
#[derive(Debug, PartialEq, Eq)]
struct Image {
    content: Vec<u8>,
    /// The address of its first instruction.
    entry: usize,
}

impl Image {
    /// Parses a static program: 64 bits, this machine's byte order, no relocations.
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
            if to > MAX_SIZE {
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

/// The image in a sealed file, its size, and the address of its first instruction.
pub(super) fn image() -> io::Result<(BorrowedFd<'static>, usize, usize)> {
    static IMAGE: OnceLock<Result<(OwnedFd, usize, usize), i32>> = OnceLock::new();
    let made = IMAGE.get_or_init(|| {
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
    fn the_image_needs_no_relocation() {
        let image = Image::new(PROGRAM).unwrap();
        assert!(image.content.len() < 64 << 10 && image.entry > 0, "{}", image.content.len());
        // No writable segment, and none for a dynamic linker.
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
    fn invalid_programs_are_none() {
        assert_eq!(Image::new(b""), None);
        assert_eq!(Image::new(b"\x7fELF\x02\x01"), None);
        let mut broken = PROGRAM.to_vec();
        broken.truncate(100);
        assert_eq!(Image::new(&broken), None);
    }
}
