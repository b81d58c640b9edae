//! The stdio transport: a program in the sandbox, one JSON-RPC message per line.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufReader, PipeReader, PipeWriter, Read as _, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::{RoleClient, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::sync::{mpsc, oneshot};
use toolpost_core::{Masks, Secret, StartCheck, Suggestion, ToolError};
use toolpost_sandbox::{
    HostDirectory, Level, Limits, Need, Origin, Program, Running, Sandbox, Verdict, Workspace,
    program_directories,
};

use super::flight::SendFailure;
use super::message::{Line, LineReader, read};
use super::response::Pending;
use super::settings::{MAX_MESSAGE_BYTES, Settings, StartEvent};

/// The wall-clock limit of a server; each call has its own limit.
const MAX_LIFETIME: Duration = Duration::from_hours(24 * 365);
/// The time that a server may run after its stdin is closed, before it is killed.
const GRACE: Duration = Duration::from_millis(500);
/// The bytes of stderr that are kept, from the end.
const MAX_STDERR: usize = 4 << 10;
/// The capacity of the queues to and from the pipe threads.
const QUEUE_CAPACITY: usize = 64;
/// The most invalid lines in a row.
const MAX_GARBAGE: usize = 1_000;
/// Shorter values of variables are not masked.
const MIN_MASKED: usize = 6;

/// File extensions of scripts; a server may read the directory of its script.
const SCRIPT_EXTENSIONS: [&str; 12] =
    ["py", "js", "mjs", "cjs", "ts", "mts", "cts", "rb", "pl", "php", "sh", "lua"];

/// A line to write, and where to report whether it was written.
type Outgoing = (Vec<u8>, oneshot::Sender<bool>);

/// The last stderr output of a program, and its exit.
#[derive(Clone, Default)]
pub(super) struct Stderr {
    kept: Arc<Mutex<VecDeque<u8>>>,
    masks: Masks,
    exit: Arc<OnceLock<Result<Verdict, ToolError>>>,
}

impl Stderr {
    fn push(&self, text: &[u8]) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(text.get(text.len().saturating_sub(MAX_STDERR)..).unwrap_or_default());
        let excess = kept.len().saturating_sub(MAX_STDERR);
        kept.drain(..excess);
    }

    /// The text, with secrets masked and control characters removed.
    pub(super) fn text(&self) -> String {
        let bytes: Vec<u8> =
            self.kept.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        let masked = if bytes.len() < MAX_STDERR { self.masks.bytes(bytes) } else { self.masks.tail(bytes) };
        let text = String::from_utf8_lossy(&masked);
        let plain: String = text.chars().filter(|letter| *letter == '\n' || !letter.is_control()).collect();
        self.masks.text(&plain).trim().to_owned()
    }

    /// The exit of the program, or the reason why it did not start, after a short wait.
    pub(super) async fn exit(&self) -> Option<&Result<Verdict, ToolError>> {
        let until = Instant::now() + 2 * GRACE;
        while self.exit.get().is_none() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.exit.get()
    }
}

/// The standard streams of a program. Dropping closes stdin and kills the process tree soon after.
pub(super) struct Streams {
    incoming: mpsc::Receiver<ServerJsonRpcMessage>,
    outgoing: Option<mpsc::Sender<Outgoing>>,
    running: Option<Running>,
    stderr: Stderr,
    pending: Pending,
}

/// The reason why a message was not sent.
#[derive(Debug)]
pub(super) struct Unsent(&'static str);

impl std::fmt::Display for Unsent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Unsent {}

impl SendFailure for Unsent {
    /// A partial line is not a message.
    fn is_undelivered(&self) -> bool {
        true
    }
}

/// The program to start.
pub(super) struct Start<'a> {
    pub(super) argv: &'a [std::ffi::OsString],
    pub(super) env: &'a [(String, std::ffi::OsString)],
    pub(super) dir: Option<&'a Path>,
    pub(super) level: Level,
}

/// Starts the program.
pub(super) async fn start(settings: &Settings, start: Start<'_>) -> Result<(Streams, Stderr), ToolError> {
    if start.argv.is_empty() {
        return Err(ToolError::invalid_input("the server command is empty"));
    }
    let argv = start.argv.to_vec();
    let grants = settings.granted.grants();
    let level = grants.level.unwrap_or(start.level);
    let mut limits = Limits::for_level(level);
    (limits.cpu, limits.idle, limits.wall) = (None, None, MAX_LIFETIME);
    let dir = grants.workdir.as_deref().or(start.dir);
    let workspace = dir.map_or(Workspace::Fresh, |dir| Workspace::Host(dir.to_owned()));
    let mut sandbox = Sandbox::new().level(level).limits(limits).workspace(workspace);
    sandbox = settings.granted.apply(sandbox).protect(settings.protected.iter().cloned());
    if let Some(backend) = &settings.backend {
        sandbox = sandbox.backend(Arc::clone(backend));
    } else {
        if let Some(search) = &settings.search_path {
            sandbox = sandbox.search_path(search.clone());
        }
        if let Some(home) = &settings.home {
            sandbox = sandbox.home(home);
        }
        sandbox = sandbox.needs(own_paths(&argv));
    }
    for (name, value) in start.env {
        sandbox = sandbox.env(name, value.clone());
    }
    let secrets = start
        .env
        .iter()
        .filter_map(|(_, value)| value.to_str())
        .filter(|value| value.len() >= MIN_MASKED)
        .chain(settings.granted.values())
        .map(Secret::new);
    let stderr = Stderr { kept: Arc::default(), masks: Masks::new(secrets), exit: Arc::default() };
    let masks = Masks::new(settings.granted.values().map(Secret::new));
    let program = Program::operator_argv(argv);
    let stderr_log = stderr.clone();
    // Setting up a sandbox blocks for about a millisecond.
    let check = settings.start_check.clone();
    let start = move || {
        check.as_ref().map_or(Ok(()), StartCheck::check)?;
        begin(&sandbox, &program, stderr_log, masks)
    };
    let streams = tokio::task::spawn_blocking(start).await??;
    if let Some(running) = &streams.running {
        settings.report(&StartEvent::Started { shown: running.shown(), not_shown: running.not_shown() });
    }
    Ok((streams, stderr))
}

/// The paths that a server may read: the directories of its program and its script.
fn own_paths(argv: &[OsString]) -> Vec<Need> {
    let is_script = |path: &&Path| {
        let kind = path.extension().unwrap_or_default();
        path.is_absolute() && SCRIPT_EXTENSIONS.iter().any(|script| kind == *script) && path.is_file()
    };
    let program = argv.first().map(Path::new).filter(|path| path.is_absolute());
    let script = argv.iter().skip(1).map(Path::new).find(is_script);
    let own = program.into_iter().chain(script).flat_map(program_directories);
    own.chain(script.map(|path| Need::new(path, Origin::Operator))).collect()
}

/// Starts the program. `stderr_log` collects stderr; `masks` apply to messages.
fn begin(
    sandbox: &Sandbox,
    program: &Program,
    stderr_log: Stderr,
    masks: Masks,
) -> Result<Streams, ToolError> {
    let mut running = sandbox.start(program).map_err(of_sandbox)?;
    let (sender, incoming) = mpsc::channel(QUEUE_CAPACITY);
    let (outgoing, lines) = mpsc::channel(QUEUE_CAPACITY);
    let directory = running.host_directory();
    let pending = Pending::default();
    if let Some((stdout, stderr)) = running.take_output() {
        let (directory, stderr_log) = (directory.clone(), stderr_log.clone());
        let pending = pending.clone();
        thread("mcp-stdout", move || listen(stdout, &masks, &pending, &sender, &directory))?;
        thread("mcp-stderr", move || collect(stderr, &stderr_log))?;
    }
    if let Some(stdin) = running.take_stdin() {
        thread("mcp-stdin", move || write(stdin, lines, &directory))?;
    }
    Ok(Streams { incoming, outgoing: Some(outgoing), running: Some(running), stderr: stderr_log, pending })
}

/// Reads messages until the stream or the client closes, or too many lines are invalid.
fn listen(
    stdout: PipeReader,
    masks: &Masks,
    pending: &Pending,
    sender: &mpsc::Sender<ServerJsonRpcMessage>,
    directory: &HostDirectory,
) {
    let mut lines = LineReader::new(BufReader::with_capacity(64 << 10, stdout), MAX_MESSAGE_BYTES);
    let mut garbage = 0;
    while let Ok(Some(line)) = lines.next_line() {
        if matches!(&line, Line::Whole(text) if text.iter().all(u8::is_ascii_whitespace)) {
            continue;
        }
        match read(&masked(line, masks), pending) {
            Some(message) => {
                garbage = 0;
                // Changes of a request reach the host before its response does.
                if let Err(error) = directory.apply() {
                    tracing::warn!("cannot apply changes of a server: {error}");
                }
                if sender.blocking_send(message).is_err() {
                    return;
                }
            }
            None => {
                garbage += 1;
                if garbage > MAX_GARBAGE {
                    tracing::warn!("a server wrote more than {MAX_GARBAGE} invalid lines in a row");
                    return;
                }
            }
        }
    }
}

/// The line with secrets masked.
fn masked(line: Line, masks: &Masks) -> Line {
    match line {
        Line::Whole(text) => Line::Whole(masks.bytes(text)),
        Line::TooLong(start) => Line::TooLong(masks.bytes(start)),
    }
}

fn collect(mut stderr: PipeReader, stderr_log: &Stderr) {
    let mut piece = [0; 8 << 10];
    loop {
        match stderr.read(&mut piece) {
            Ok(0) => return,
            Ok(read) => stderr_log.push(piece.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

fn write(mut stdin: PipeWriter, mut lines: mpsc::Receiver<Outgoing>, directory: &HostDirectory) {
    while let Some((line, written)) = lines.blocking_recv() {
        directory.refresh();
        let good = stdin.write_all(&line).is_ok();
        // The sender may be gone.
        let _ = written.send(good);
        if !good {
            return;
        }
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), ToolError> {
    match std::thread::Builder::new().name(name.to_owned()).spawn(work) {
        Ok(_) => Ok(()),
        Err(error) => Err(ToolError::overloaded(format!("cannot start a thread: {error}"))),
    }
}

/// Maps a sandbox error.
fn of_sandbox(error: toolpost_sandbox::Error) -> ToolError {
    use toolpost_sandbox::Error;
    let message = format!("cannot start the server: {error}");
    let hint = error.hint();
    let mapped = match &error {
        Error::LevelUnavailable { .. } | Error::EgressUnavailable { .. } | Error::CopyTooLarge { .. } => {
            ToolError::permission(message)
        }
        Error::TooLarge { .. } => ToolError::limit(message),
        Error::Workspace { .. } => ToolError::precondition(message),
        _ => ToolError::dependency(message),
    };
    mapped.suggest_maybe(hint.as_ref().map(Suggestion::new)).caused_by(error)
}

async fn send(outgoing: Option<mpsc::Sender<Outgoing>>, line: Option<Vec<u8>>) -> Result<(), Unsent> {
    let gone = || Unsent("the server has exited");
    let line = line.ok_or(Unsent("the message cannot be serialized"))?;
    let (written, answer) = oneshot::channel();
    outgoing.ok_or_else(gone)?.send((line, written)).await.map_err(|_| gone())?;
    if answer.await == Ok(true) { Ok(()) } else { Err(gone()) }
}

fn line_of(message: &ClientJsonRpcMessage) -> Option<Vec<u8>> {
    let mut line = serde_json::to_vec(message).ok()?;
    line.push(b'\n');
    Some(line)
}

impl Transport<RoleClient> for Streams {
    type Error = Unsent;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Unsent>> + Send + 'static {
        self.pending.register(&message);
        send(self.outgoing.clone(), line_of(&message))
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        self.incoming.recv().await
    }

    async fn close(&mut self) -> Result<(), Unsent> {
        self.end();
        Ok(())
    }
}

impl Streams {
    /// Closes stdin and kills the program after a grace period, in the background.
    fn end(&mut self) {
        self.outgoing = None;
        self.incoming.close();
        let Some(running) = self.running.take() else { return };
        let exit = Arc::clone(&self.stderr.exit);
        let wait = move || {
            let until = Instant::now() + GRACE;
            while !running.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            if running.is_finished() {
                // Set only once.
                let _ = exit.set(running.wait().map(|outcome| outcome.verdict).map_err(of_sandbox));
            }
        };
        // Without a thread the program is killed at once.
        match tokio::runtime::Handle::try_current() {
            // A runtime waits for its blocking tasks, so the program does not outlive it.
            Ok(runtime) => drop(runtime.spawn_blocking(wait)),
            Err(_) => drop(thread("mcp-end", wait)),
        }
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.end();
    }
}
