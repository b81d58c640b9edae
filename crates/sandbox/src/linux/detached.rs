//! A process that outlives the host program.

#![expect(unsafe_code, reason = "what a child does between fork and exec is promised by hand")]

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use crate::Error;

/// A command in a new session that inherits no descriptor except its streams.
#[expect(clippy::disallowed_methods, reason = "this crate starts processes")]
#[expect(clippy::unnecessary_wraps, reason = "other hosts refuse")]
pub(crate) fn detached(program: &Path) -> Result<Command, Error> {
    let mut command = Command::new(program);
    let prepare = || {
        // SAFETY: a system call without pointers; in the forked child, which leads no process group, it cannot fail.
        if unsafe { libc::setsid() } < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // Marked, not closed: the standard library reports a failed start through a descriptor of its own.
        // SAFETY: a system call without pointers, and one that may be made between fork and exec.
        unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        Ok(())
    };
    // SAFETY: the closure makes two system calls: it allocates nothing, takes no lock, and reads no memory of others.
    unsafe { command.pre_exec(prepare) };
    Ok(command)
}
