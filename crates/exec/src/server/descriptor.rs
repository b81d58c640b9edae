//! Keeping standard output and input for the protocol alone.

use std::fs::File;
use std::io;

/// Moves standard output to a descriptor of its own, and lets what anybody prints from now on go to standard error: a
/// stray print cannot corrupt the protocol, and a process that a tool starts does not hold it open.
///
/// # Errors
/// Those of the operating system.
#[cfg(unix)]
pub fn own_output() -> io::Result<File> {
    use std::os::fd::AsFd as _;
    let own = io::stdout().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdout(io::stderr().as_fd())?;
    Ok(own.into())
}

/// Moves standard input to a descriptor of its own, and lets whoever else reads find nothing: what a tool starts cannot
/// take lines of the protocol.
///
/// # Errors
/// Those of the operating system.
#[cfg(unix)]
pub fn own_input() -> io::Result<File> {
    use std::os::fd::AsFd as _;
    let own = io::stdin().as_fd().try_clone_to_owned()?;
    let nothing = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(nothing.as_fd())?;
    Ok(own.into())
}

/// Not on this operating system.
///
/// # Errors
/// Always: the caller uses standard output as it is.
#[cfg(not(unix))]
pub fn own_output() -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Not on this operating system.
///
/// # Errors
/// Always: the caller uses standard input as it is.
#[cfg(not(unix))]
pub fn own_input() -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}
