//! The command in a world of its own: directories, environment, terminal, model, and a time limit.

mod model;
mod terminal;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use toolpost_core::Schema;

pub(crate) use self::model::{
    Anthropic, ask, begins, calls, calls_all, hesitates, says, says_in_pieces, says_too_much, says_whole,
    says_with_usage,
};
pub(crate) use self::terminal::Screen;

/// The time limit of a command, for hanging ones.
const LIMIT: Duration = Duration::from_mins(2);

/// A world for the command: a home, a working directory, a temporary directory, an empty environment.
pub(crate) struct TestEnv {
    root: tempfile::TempDir,
    program: PathBuf,
    environment: BTreeMap<String, OsString>,
    user: Option<u32>,
    may_leave_files: bool,
    /// The current directory, beneath `work`.
    inside: PathBuf,
}

impl TestEnv {
    pub(crate) fn new() -> Self {
        let root = tempfile::Builder::new().prefix("toolpost-test-").tempdir().unwrap();
        for directory in ["home", "work", "tmp"] {
            std::fs::create_dir(root.path().join(directory)).unwrap();
        }
        let mut env = Self {
            root,
            program: env!("CARGO_BIN_EXE_toolpost").into(),
            environment: BTreeMap::new(),
            user: None,
            may_leave_files: false,
            inside: PathBuf::new(),
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "interpreters are where the tests' own environment says"
        )]
        let path = std::env::var_os("PATH").unwrap_or_default();
        let directories = ["home", "tmp"].map(|directory| env.root.path().join(directory));
        for (name, value) in ["HOME", "TMPDIR"].into_iter().zip(directories) {
            env.environment.insert(name.to_owned(), value.into());
        }
        // Tests never leave this machine.
        env.with("PATH", path).with("TOOLPOST_NO_NETWORK", "1").with("COLUMNS", "100")
    }

    /// A variant as another user, with a copy of the program.
    pub(crate) fn of_user(mut self, user: u32) -> std::io::Result<Self> {
        use std::os::unix::fs::{PermissionsExt as _, chown};
        std::fs::set_permissions(self.root.path(), std::fs::Permissions::from_mode(0o755))?;
        for directory in ["home", "work", "tmp"] {
            chown(self.root.path().join(directory), Some(user), Some(user))?;
        }
        let copy = self.root.path().join("toolpost");
        std::fs::copy(&self.program, &copy)?;
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755))?;
        self.program = copy;
        self.user = Some(user);
        Ok(self)
    }

    /// Adds an environment variable.
    pub(crate) fn with(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.insert(name.to_owned(), value.into());
        self
    }

    /// Removes an environment variable.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.environment.remove(name);
        self
    }

    /// Makes a directory the current one.
    pub(crate) fn inside(mut self, directory: &str) -> Self {
        self.inside = directory.into();
        std::fs::create_dir_all(self.path("")).unwrap();
        self
    }

    /// Allows leftover temporary files.
    pub(crate) fn leaving_files(mut self) -> Self {
        self.may_leave_files = true;
        self
    }

    /// A path in the working directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join("work").join(&self.inside).join(name)
    }

    /// Writes a file in the working directory with its parents.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    #[expect(clippy::disallowed_methods, reason = "what is tested is the program")]
    fn command_of(&self, user: Option<u32>, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).env_clear().envs(&self.environment).current_dir(self.path(""));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(user) = user {
            use std::os::unix::process::CommandExt as _;
            command.uid(user).gid(user);
        }
        command
    }

    fn command(&self, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        self.command_of(self.user, words)
    }

    /// Starts the command as the user of this process.
    pub(crate) fn start_as_self(&self, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Running {
        Running::start(self.command_of(None, words)).unwrap()
    }

    /// Runs the command without input.
    pub(crate) fn run(&self, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Finished {
        let running = Running::start(self.command(words)).unwrap();
        self.ended(running)
    }

    /// Runs the command as root with a directory of the working directory as a mount of its own.
    pub(crate) fn run_mounted(
        &self,
        directory: &str,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Finished {
        let own = self.command(words);
        let script = format!("mount --bind {directory} {directory} && exec \"$0\" \"$@\"");
        #[expect(clippy::disallowed_methods, reason = "the mount namespace of the program")]
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).arg(own.get_program()).args(own.get_args());
        command.env_clear().envs(&self.environment).current_dir(self.path(""));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.ended(Running::start(command).unwrap())
    }

    /// Runs the command with input.
    pub(crate) fn run_with(
        &self,
        input: impl Into<Vec<u8>>,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Finished {
        let mut command = self.command(words);
        command.stdin(Stdio::piped());
        let mut running = Running::start(command).unwrap();
        let (mut stdin, input) = (running.child.stdin.take().unwrap(), input.into());
        // A command may close its input early.
        std::thread::spawn(move || drop(stdin.write_all(&input)));
        self.ended(running)
    }

    /// Runs the command with standard output to a file.
    pub(crate) fn run_into(
        &self,
        path: &str,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Finished {
        let mut command = self.command(words);
        command.stdout(std::fs::OpenOptions::new().write(true).open(path).unwrap());
        self.ended(Running::start(command).unwrap())
    }

    /// Runs the command with a closed reader of standard output, as `| true` does.
    pub(crate) fn run_into_nothing(&self, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Finished {
        let mut command = self.command(words);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        command.stdout(writer);
        self.ended(Running::start(command).unwrap())
    }

    /// Runs the command with a closed reader of standard error.
    pub(crate) fn run_with_closed_errors(
        &self,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Finished {
        let mut command = self.command(words);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        command.stderr(writer);
        self.ended(Running::start(command).unwrap())
    }

    /// Starts the command with a standard output pipe that stays unread.
    pub(crate) fn start_unread(
        &self,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> (std::io::PipeReader, Running) {
        let mut command = self.command(words);
        let (reader, writer) = std::io::pipe().unwrap();
        command.stdout(writer);
        (reader, Running::start(command).unwrap())
    }

    /// Starts the command with standard error to a file.
    pub(crate) fn start_with_errors_in(
        &self,
        name: &str,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Running {
        let mut command = self.command(words);
        command.stderr(std::fs::File::create(self.path(name)).unwrap());
        Running::start(command).unwrap()
    }

    /// Starts the command with a standard input pipe.
    pub(crate) fn start_from(
        &self,
        input: std::io::PipeReader,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Running {
        let mut command = self.command(words);
        command.stdin(input);
        Running::start(command).unwrap()
    }

    /// Starts the command with pipes as its standard input and output.
    pub(crate) fn start_piped(
        &self,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> (std::io::PipeWriter, std::io::PipeReader, Running) {
        let mut command = self.command(words);
        let (stdin, input) = std::io::pipe().unwrap();
        let (output, stdout) = std::io::pipe().unwrap();
        command.stdin(stdin).stdout(stdout);
        (input, output, Running::start(command).unwrap())
    }

    /// Starts the command.
    pub(crate) fn start(&self, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Running {
        Running::start(self.command(words)).unwrap()
    }

    fn ended(&self, running: Running) -> Finished {
        let finished = running.finish();
        let left: Vec<PathBuf> = std::fs::read_dir(self.root.path().join("tmp"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(self.may_leave_files || left.is_empty(), "temporary files stayed: {left:?}\n{finished}");
        finished
    }
}

/// A running command, killed on drop.
pub(crate) struct Running {
    line: String,
    pub(crate) child: Child,
    outputs: [Option<JoinHandle<Vec<u8>>>; 2],
}

impl Running {
    fn start(mut command: Command) -> std::io::Result<Self> {
        let words: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        let line = words.join(" ").chars().take(500).collect();
        let mut child = command.spawn()?;
        let outputs = [child.stdout.take().map(gather), child.stderr.take().map(gather)];
        Ok(Self { line, child, outputs })
    }

    /// Sends a signal to the command alone.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, signal).unwrap();
    }

    /// Waits for the end.
    pub(crate) fn finish(mut self) -> Finished {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break Some(status);
            }
            if begun.elapsed() > LIMIT {
                self.child.kill().unwrap();
                break None;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let [out, err] = self
            .outputs
            .each_mut()
            .map(|output| output.take().map(|thread| thread.join().unwrap()).unwrap_or_default());
        let [out, err] = [out, err].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let Some(status) = status else { panic!("`toolpost {}` hangs\n{out}\n{err}", self.line) };
        Finished { line: self.line.clone(), status, out, err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Already over, unless a test failed.
        let _ = self.child.kill();
    }
}

fn gather(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

/// A finished command.
#[derive(Debug)]
pub(crate) struct Finished {
    line: String,
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |text: &str| text.chars().take(4_000).collect::<String>();
        write!(f, "`toolpost {}`: {}\n{}\n{}", self.line, self.status, shown(&self.out), shown(&self.err))
    }
}

impl Finished {
    /// Asserts an exit code.
    #[track_caller]
    pub(crate) fn exit(self, expected: i32) -> Self {
        assert_eq!(self.status.code(), Some(expected), "{self}");
        self
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        self.exit(0)
    }

    /// Standard output as one JSON value.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self}"))
    }

    /// Standard output as JSON Lines.
    #[track_caller]
    pub(crate) fn lines(&self) -> Vec<Value> {
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.out.lines().map(parse).collect()
    }

    /// The record in the last JSON line.
    #[track_caller]
    pub(crate) fn record(&self) -> Value {
        self.lines().pop().unwrap_or_else(|| panic!("no lines: {self}"))["record"].take()
    }

    /// The error line of standard error.
    #[track_caller]
    pub(crate) fn error(&self) -> Value {
        let [line] = self.err.lines().collect::<Vec<_>>()[..] else { panic!("not one line: {self}") };
        let mut value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {self}"));
        fits("error", &value);
        assert_eq!(value["error"]["exit"].as_i64(), self.status.code().map(i64::from), "{self}");
        value["error"].take()
    }
}

/// Asserts that a value fits a schema of the command.
#[track_caller]
pub(crate) fn fits(schema: &str, value: &Value) {
    static SCHEMAS: Mutex<BTreeMap<String, Schema>> = Mutex::new(BTreeMap::new());
    let mut schemas = SCHEMAS.lock().unwrap_or_else(PoisonError::into_inner);
    let schema_of = || Schema::new(TestEnv::new().run(["schema", schema]).ok().json());
    let problems = schemas.entry(schema.to_owned()).or_insert_with(schema_of).problems(value).unwrap();
    drop(schemas);
    assert!(problems.is_empty(), "{schema}: {problems:?}\n{value:#}");
}

/// A file of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path).canonicalize().unwrap()
}

/// The IDs of processes with this word in their command line, except the command itself.
pub(crate) fn processes(text: &str) -> Vec<u32> {
    let own = std::process::id();
    let ids = std::fs::read_dir("/proc").unwrap().flatten();
    ids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|id| *id != own)
        .filter(|id| {
            let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            let words: Vec<_> = line.split(|byte| *byte == 0).collect();
            !words[0].ends_with(b"toolpost") && words.contains(&text.as_bytes())
        })
        .collect()
}

/// Waits until a condition is true.
#[track_caller]
pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_mins(1), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
