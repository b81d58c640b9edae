//! Starts a program that outlives the host program.

use std::ffi::OsString;
use std::io::{PipeReader, PipeWriter};
use std::path::Path;

use crate::Error;

/// The streams of a program from [`start_detached`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Detached {
    /// Its standard input. Dropping it ends the input.
    pub stdin: PipeWriter,
    /// Its standard output.
    pub stdout: PipeReader,
}

/// Starts an unconfined program that outlives the host program, such as the server of a session.
///
/// It gets its own terminal session, so Ctrl-C and a closed terminal do not reach it, and `/` as its
/// directory. It inherits no descriptor besides the two returned streams, and its standard error is
/// discarded. Its environment contains only `environment`.
///
/// The caller must end it; nothing else does.
///
/// # Errors
/// [`Error::ProgramNotStarted`] with the system's reason; [`Error::Setup`] where there are no pipes.
pub fn start_detached(
    program: &Path,
    arguments: &[OsString],
    environment: &[(OsString, OsString)],
) -> Result<Detached, Error> {
    let pipe = || std::io::pipe().map_err(|source| Error::Setup { step: "make a pipe", source });
    let (theirs, stdin) = pipe()?;
    let (stdout, ours) = pipe()?;
    let mut command = crate::platform::detached(program)?;
    command.args(arguments).env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
    command.current_dir("/").stdin(theirs).stdout(ours).stderr(std::process::Stdio::null());
    let mut child = command
        .spawn()
        .map_err(|source| Error::ProgramNotStarted { program: program.display().to_string(), source })?;
    // The command holds the far ends of the pipes; close them, so that the streams can end.
    drop(command);
    // Reap the child while the host program lives.
    let waiting = std::thread::Builder::new().name("detached".into()).spawn(move || child.wait());
    waiting.map_err(|source| Error::Setup { step: "start a thread", source })?;
    Ok(Detached { stdin, stdout })
}
