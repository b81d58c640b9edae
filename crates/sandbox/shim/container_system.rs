//! System interface of a container's first process: flags, files and memory.

use crate::bare::{call, exit, number};

#[cfg(target_arch = "x86_64")]
pub(crate) mod flag {
    pub(crate) const DIRECTORY: usize = 0o200_000;
    pub(crate) const NOFOLLOW: usize = 0o400_000;
}
#[cfg(target_arch = "aarch64")]
pub(crate) mod flag {
    pub(crate) const DIRECTORY: usize = 0o40_000;
    pub(crate) const NOFOLLOW: usize = 0o100_000;
}
pub(crate) const WRITE_ONLY: usize = 1;
pub(crate) const CREATE_NEW: usize = 0o100 | 0o200;
pub(crate) const NONBLOCK: usize = 0o4_000;
pub(crate) const CLOEXEC: usize = 0o2_000_000;
pub(crate) const HERE: usize = -100isize as usize;

pub(crate) fn close(descriptor: isize) {
    if descriptor >= 0 {
        call(number::CLOSE, [descriptor as usize]);
    }
}

pub(crate) fn read(descriptor: isize, buffer: &mut [u8]) -> isize {
    call(number::READ, [descriptor as usize, buffer.as_mut_ptr() as usize, buffer.len()])
}

/// `path` must end in a NUL.
pub(crate) fn open(directory: usize, path: &[u8], flags: usize) -> isize {
    call(number::OPENAT, [directory, path.as_ptr() as usize, flags | CLOEXEC, 0o644])
}

/// Moves a descriptor above those of the program.
pub(crate) fn high(descriptor: isize) -> isize {
    if descriptor < 0 {
        return descriptor;
    }
    let moved = call(number::FCNTL, [descriptor as usize, 1030 /* F_DUPFD_CLOEXEC */, 10]);
    close(descriptor);
    moved
}

/// Maps private memory. Untouched pages cost nothing.
pub(crate) fn memory(size: usize) -> &'static mut [u8] {
    let at = call(number::MMAP, [0, size, 3, 0x22, usize::MAX]);
    if at < 0 {
        exit(4);
    }
    // SAFETY: the kernel has just mapped `size` bytes there, zeroed, for this process alone and for good.
    unsafe { core::slice::from_raw_parts_mut(at as *mut u8, size) }
}

/// Writes everything, or exits if the host is gone.
pub(crate) fn write(descriptor: usize, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let size = call(number::WRITE, [descriptor, bytes.as_ptr() as usize, bytes.len()]);
        if size == -4 {
            continue;
        }
        if size <= 0 {
            exit(5);
        }
        bytes = &bytes[size as usize..];
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PollFd {
    pub(crate) descriptor: i32,
    pub(crate) events: i16,
    pub(crate) returned: i16,
}

impl PollFd {
    /// An unused entry.
    pub(crate) const NONE: Self = Self { descriptor: -1, events: 0, returned: 0 };
}
