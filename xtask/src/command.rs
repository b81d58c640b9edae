//! Starts the programs of the chores: no standard input, a time limit, output shown, captured, or both.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;

/// The grace period between the request to exit and the kill.
const GRACE: Duration = Duration::from_secs(15);

/// The maximum size of a captured stream in bytes; the rest is discarded.
const CAPTURE_LIMIT_BYTES: usize = 64 << 20;

/// Variables that `cargo run` sets for this program and that would make a nested Cargo build again what is built.
const NOT_PASSED_ON: &[&str] =
    &["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"];

/// A program to be started.
#[derive(Debug, Clone)]
pub struct Task {
    program: String,
    arguments: Vec<String>,
    directory: Option<PathBuf>,
    environment: Vec<(String, String)>,
    limit: Duration,
    user: Option<u32>,
}

/// The output and exit status of a captured program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// Ended with status 0.
    pub success: bool,
    /// Its exit status; nothing if a signal or the time limit ended it.
    pub status: Option<i32>,
    /// Standard output, with what is not UTF-8 replaced.
    pub text: String,
    /// Standard error, with what is not UTF-8 replaced.
    pub errors: String,
}

impl Task {
    /// A program with its arguments, with a limit of 20 minutes.
    pub fn new(program: &str, arguments: &[&str]) -> Self {
        Self {
            program: program.to_owned(),
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            directory: None,
            environment: Vec::new(),
            limit: Duration::from_mins(20),
            user: None,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn directory(mut self, directory: &Path) -> Self {
        self.directory = Some(directory.to_owned());
        self
    }

    /// Sets a variable of its environment.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the time after which it is ended.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Makes it run as another user, which only root can.
    #[must_use]
    pub fn user(mut self, user: u32) -> Self {
        self.user = Some(user);
        self
    }

    /// The command as a reader would type it.
    pub fn line(&self) -> String {
        let mut line = self.program.clone();
        for argument in &self.arguments {
            line.push(' ');
            if argument.is_empty() || argument.contains([' ', '"', '\'', '(', '*']) {
                line.push('\'');
                line.push_str(argument);
                line.push('\'');
            } else {
                line.push_str(argument);
            }
        }
        line
    }

    /// Runs it with its output shown on standard error. The answer is whether it ended with status 0.
    pub fn show(&self) -> Result<bool> {
        let mut command = self.command();
        command.stdout(Stdio::from(std::io::stderr())).stderr(Stdio::inherit());
        let mut child = self.start(&mut command)?;
        Ok(self.wait(&mut child)?.is_some_and(|status| status.success()))
    }

    /// Runs it and keeps its output.
    pub fn capture(&self) -> Result<Captured> {
        let mut command = self.command();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.start(&mut command)?;
        let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(format!("`{}` has no output streams", self.line()));
        };
        let output = thread::spawn(move || read_bounded(output));
        let errors = thread::spawn(move || read_bounded(errors));
        let status = self.wait(&mut child)?;
        Ok(Captured {
            success: status.is_some_and(|status| status.success()),
            status: status.and_then(|status| status.code()),
            text: output.join().unwrap_or_default(),
            errors: errors.join().unwrap_or_default(),
        })
    }

    /// Runs it, keeps its output, and writes the command and the output to `log`.
    pub fn capture_to(&self, log: &Path) -> Result<Captured> {
        let captured = self.capture()?;
        let mut file =
            File::create(log).map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        write!(file, "$ {}\n{}\n{}", self.line(), captured.text, captured.errors)
            .map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        Ok(captured)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if let Some(text) = name.to_str()
                && NOT_PASSED_ON.iter().any(|prefix| text.starts_with(prefix))
            {
                command.env_remove(text);
            }
        }
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        #[cfg(unix)]
        if let Some(user) = self.user {
            std::os::unix::process::CommandExt::gid(&mut command, user);
            std::os::unix::process::CommandExt::uid(&mut command, user);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    fn start(&self, command: &mut Command) -> Result<Child> {
        command.spawn().map_err(|error| format!("cannot start `{}`: {error}; is it installed?", self.line()))
    }

    /// Waits until the end or the limit; at the limit the program is asked to end (Cargo and nextest then end what they
    /// started), and killed after the grace time.
    fn wait(&self, child: &mut Child) -> Result<Option<ExitStatus>> {
        let ended = |error| format!("cannot wait for `{}`: {error}", self.line());
        let begin = Instant::now();
        let mut asked = false;
        loop {
            if let Some(status) = child.try_wait().map_err(ended)? {
                return Ok((!asked).then_some(status));
            }
            let elapsed = begin.elapsed();
            if elapsed > self.limit && !asked {
                asked = true;
                let _ = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
            }
            if elapsed > self.limit + GRACE {
                child.kill().map_err(ended)?;
                child.wait().map_err(ended)?;
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(if elapsed.as_secs() < 1 { 2 } else { 50 }));
        }
    }
}

fn read_bounded(mut stream: impl Read) -> String {
    let mut kept = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        let room = CAPTURE_LIMIT_BYTES.saturating_sub(kept.len());
        kept.extend_from_slice(&buffer[..read.min(room)]);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_captured() {
        let captured = Task::new("sh", &["-c", "echo out; echo err >&2; exit 3"]).capture().unwrap();
        let expected =
            Captured { success: false, status: Some(3), text: "out\n".into(), errors: "err\n".into() };
        assert_eq!(captured, expected);
    }

    #[test]
    fn a_program_that_outlives_its_limit_is_ended() {
        let begin = Instant::now();
        let captured = Task::new("sleep", &["60"]).limit(Duration::from_millis(50)).capture().unwrap();
        assert_eq!((captured.success, captured.status), (false, None));
        assert!(begin.elapsed() < GRACE, "took {:?}", begin.elapsed());
    }

    #[test]
    fn standard_input_is_empty() {
        let captured = Task::new("cat", &[]).capture().unwrap();
        assert_eq!((captured.success, captured.text.as_str()), (true, ""));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = Task::new("toolpost-no-such-program", &["x"]).capture().unwrap_err();
        assert!(error.contains("toolpost-no-such-program x"), "{error}");
    }
}
