//! Locks of files and directories, between processes and threads.

use std::time::{Duration, Instant};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// An open file or directory with a lock, which ends with this value.
///
/// Closing the descriptor would not end it at once: until it executes its program, a process that another
/// thread has just started has a duplicate.
#[derive(Debug)]
pub(super) struct Locked(OwnedFd);

impl Locked {
    /// Locks it now, exclusively.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] if it is locked.
    pub(super) fn now(file: OwnedFd) -> Result<Self, Errno> {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self(file))
    }

    /// Locks it exclusively, and waits for up to a time.
    pub(super) fn within(file: OwnedFd, time: Duration) -> Result<Self, Errno> {
        let end = Instant::now() + time;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(file)),
                Err(Errno::AGAIN) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Locked {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // A file system without locks has none to end.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}
