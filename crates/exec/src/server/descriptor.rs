//! Reserves standard output and input for the protocol.

use std::fs::File;
use std::io;

/// Moves standard output to a new descriptor and redirects descriptor 1 to stderr.
///
/// Stray prints then cannot corrupt the protocol, and child processes do not hold it open.
///
/// # Errors
/// Errors of the operating system.
#[cfg(unix)]
pub fn own_output() -> io::Result<File> {
    use std::os::fd::AsFd as _;
    let own = io::stdout().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdout(io::stderr().as_fd())?;
    Ok(own.into())
}

/// Moves standard input to a new descriptor and redirects descriptor 0 to an empty file.
///
/// Child processes then cannot read lines of the protocol.
///
/// # Errors
/// Errors of the operating system.
#[cfg(unix)]
pub fn own_input() -> io::Result<File> {
    use std::os::fd::AsFd as _;
    let own = io::stdin().as_fd().try_clone_to_owned()?;
    let nothing = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(nothing.as_fd())?;
    Ok(own.into())
}

/// Unsupported on this operating system.
///
/// # Errors
/// Always: the caller uses standard output unchanged.
#[cfg(not(unix))]
pub fn own_output() -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Unsupported on this operating system.
///
/// # Errors
/// Always: the caller uses standard input unchanged.
#[cfg(not(unix))]
pub fn own_input() -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}
