//! Plain processes of the benchmark, with a time limit.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use toolpost_sandbox::Cancel;

use crate::env;

/// The time limit of one process.
const LIMIT: Duration = Duration::from_secs(30);
/// The interval between two looks at time limits and Ctrl-C.
const TICK: Duration = Duration::from_millis(20);

/// Kills process groups at their time limit and at Ctrl-C.
#[derive(Clone)]
pub(super) struct Watch {
    cancel: Cancel,
    limit: Duration,
    live: Arc<Mutex<Vec<(Pid, Instant)>>>,
}

impl Watch {
    pub(super) fn new(cancel: &Cancel) -> Self {
        Self::with_limit(cancel, LIMIT)
    }

    pub(super) fn with_limit(cancel: &Cancel, limit: Duration) -> Self {
        let watch = Self { cancel: cancel.clone(), limit, live: Arc::default() };
        let live = Arc::downgrade(&watch.live);
        let cancel = cancel.clone();
        std::thread::spawn(move || {
            while let Some(live) = live.upgrade() {
                for (group, deadline) in live.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                    if cancel.is_cancelled() || Instant::now() > *deadline {
                        // It may have ended already.
                        let _ = kill_process_group(*group, Signal::KILL);
                    }
                }
                drop(live);
                std::thread::sleep(TICK);
            }
        });
        watch
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Runs a process without input and output, and returns its time.
    pub(super) fn time(&self, words: &[OsString]) -> Result<Duration, String> {
        let mut command = command(words)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let begun = Instant::now();
        let mut child = Process::spawn(self, command)?;
        let status = child.wait();
        let time = begun.elapsed();
        if status == Some(0) { Ok(time) } else { Err(child.reason(status)) }
    }

    /// Runs a process to its end and returns its output.
    pub(super) fn output(&self, words: &[OsString]) -> Result<String, String> {
        let mut process = Process::start(self, words)?;
        process.end_input();
        let mut text = String::new();
        if let Some(output) = &mut process.output {
            output.read_to_string(&mut text).map_err(|error| error.to_string())?;
        }
        match process.wait() {
            Some(0) => Ok(text),
            status => Err(process.reason(status)),
        }
    }
}

/// A running process, killed with its group on drop.
pub(super) struct Process {
    watch: Watch,
    child: std::process::Child,
    group: Pid,
    begun: Instant,
    input: Option<ChildStdin>,
    output: Option<BufReader<ChildStdout>>,
    errors: Option<File>,
    is_reaped: bool,
}

impl Process {
    /// Starts a process with pipes. Its stderr is for the reason of a failure.
    pub(super) fn start(watch: &Watch, words: &[OsString]) -> Result<Self, String> {
        let errors = tempfile::tempfile().map_err(|error| error.to_string())?;
        let mut command = command(words)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(errors.try_clone().map_err(|error| error.to_string())?);
        let mut process = Self::spawn(watch, command)?;
        process.input = process.child.stdin.take();
        process.output = process.child.stdout.take().map(|output| BufReader::with_capacity(64 << 10, output));
        process.errors = Some(errors);
        Ok(process)
    }

    fn spawn(watch: &Watch, mut command: Command) -> Result<Self, String> {
        use std::os::unix::process::CommandExt as _;
        let begun = Instant::now();
        let child = command.process_group(0).spawn().map_err(|error| error.to_string())?;
        let group = Pid::from_child(&child);
        watch.live().push((group, begun + watch.limit));
        let watch = watch.clone();
        Ok(Self { watch, child, group, begun, input: None, output: None, errors: None, is_reaped: false })
    }

    pub(super) fn is_running(&mut self) -> bool {
        // Leaves a dead process to be reaped by `wait`.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        matches!(waitid(WaitId::Pid(self.group), options), Ok(None))
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The time since the start.
    pub(super) fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    pub(super) fn write(&mut self, text: &[u8]) -> Result<(), String> {
        let written = self.input.as_mut().map_or(Ok(()), |input| input.write_all(text));
        written.map_err(|_| self.failure())
    }

    /// Reads the next line of output.
    pub(super) fn line(&mut self, line: &mut String) -> Result<(), String> {
        line.clear();
        match self.output.as_mut().map(|output| output.read_line(line)) {
            Some(Ok(length)) if length > 0 => Ok(()),
            _ => Err(self.failure()),
        }
    }

    /// The reason of an early end. It ends the process, if needed.
    pub(super) fn failure(&mut self) -> String {
        self.end_input();
        let status = self.wait();
        self.reason(status)
    }

    fn end_input(&mut self) {
        self.input = None;
    }

    /// Waits for the end; the exit status, none after a signal.
    fn wait(&mut self) -> Option<i32> {
        if !self.is_reaped {
            // The ID is valid until the process is reaped, so the watch forgets it first.
            let _ = waitid(WaitId::Pid(self.group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
            self.watch.live().retain(|(group, _)| *group != self.group);
            self.is_reaped = true;
        }
        self.child.wait().ok()?.code()
    }

    fn reason(&mut self, status: Option<i32>) -> String {
        if self.watch.is_cancelled() {
            return "cancelled".to_owned();
        }
        if self.age() > self.watch.limit {
            return format!("no result after {} s", self.watch.limit.as_secs_f32());
        }
        let mut text = Vec::new();
        if let Some(errors) = &mut self.errors {
            let _ = errors.rewind().and_then(|()| errors.take(1 << 20).read_to_end(&mut text));
        }
        let text = String::from_utf8_lossy(&text);
        let lines = || text.lines().rev().filter(|line| !line.trim().is_empty());
        let is_error =
            |line: &&str| ["error", "cannot", "failed"].iter().any(|word| line.to_lowercase().contains(word));
        let line = lines().find(is_error).or_else(|| lines().next()).unwrap_or_default();
        let line = crate::style::one_line(line, 200);
        let status = status.map_or_else(|| "a signal".to_owned(), |status| format!("exit status {status}"));
        if line.is_empty() { status } else { format!("{status}: {line}") }
    }
}

impl Watch {
    fn live(&self) -> std::sync::MutexGuard<'_, Vec<(Pid, Instant)>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.is_reaped {
            let _ = kill_process_group(self.group, Signal::KILL);
            self.wait();
        }
    }
}

/// A command with a clean environment, so that a peer has no API key and no proxy.
fn command(words: &[OsString]) -> Result<Command, String> {
    let (program, arguments) = words.split_first().ok_or("no program")?;
    #[expect(clippy::disallowed_methods, reason = "plain processes are what the benchmark compares with")]
    let mut command = Command::new(program);
    command.args(arguments).env_clear();
    for name in ["PATH", "HOME", "TMPDIR", "DOCKER_HOST"] {
        command.envs(env::get_os(name).map(|value| (name, value)));
    }
    // Libraries that could send usage data or look for updates.
    command.env("DO_NOT_TRACK", "1").env("OPENAI_AGENTS_DISABLE_TRACING", "1");
    command.env("FASTMCP_CHECK_FOR_UPDATES", "off").env("LANGSMITH_TRACING", "false");
    Ok(command)
}

/// The file of a program on `PATH`.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    find_in(name, &env::get_os("PATH")?)
}

/// The file of a program on a search path.
pub(super) fn find_in(name: &str, path: &std::ffi::OsStr) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let is_program = |file: &Path| {
        file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(path).map(|directory| directory.join(name)).find(|file| is_program(file))
}

/// A command line from words.
pub(super) fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}
