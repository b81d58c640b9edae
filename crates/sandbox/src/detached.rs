//! A program of the operator that goes on when the host program ends.

use std::ffi::OsString;
use std::io::{PipeReader, PipeWriter};
use std::path::Path;

use crate::Error;

/// The ends of the streams of a program that [`start_detached`] has started.
#[derive(Debug)]
#[non_exhaustive]
pub struct Detached {
    /// Its standard input. Dropping it is the end of the input.
    pub stdin: PipeWriter,
    /// Its standard output.
    pub stdout: PipeReader,
}

/// Starts a program of the operator that is not confined and does not die with the host program: something that serves
/// several commands, such as the holder of a session. It gets a terminal session of its own, so that neither Ctrl-C nor
/// a closed terminal reaches it; the root folder as its own; no descriptor of the host program but the two streams that
/// come back, and nothing to write errors to; and the environment that is given here, and nothing else of ours.
///
/// Who starts it says when it ends: nothing else does.
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
    // The command holds their ends of the pipes: without that, the end of a stream would not be seen.
    drop(command);
    // While the host program lives, somebody must take note of its end.
    let waiting = std::thread::Builder::new().name("detached".into()).spawn(move || child.wait());
    waiting.map_err(|source| Error::Setup { step: "start a thread", source })?;
    Ok(Detached { stdin, stdout })
}
