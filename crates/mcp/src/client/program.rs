//! Servers that are programs: started by the sandbox, spoken to over their standard streams, one message per line.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufReader, PipeReader, PipeWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::{RoleClient, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::sync::{mpsc, oneshot};
use toolpost_core::{Masks, Secret, StartCheck, ToolError};
use toolpost_sandbox::{
    HostDirectory, Level, Limits, Program, Running, Sandbox, Verdict, Workspace, program_directories,
};

use super::flight::Arrival;
use super::message::{Line, LineReader, read};
use super::settings::{Settings, StartEvent};

/// A server lives as long as it is needed: each call has its own limit of time.
const LIFETIME: Duration = Duration::from_hours(24 * 365);
/// How long a server may take to end once its input has ended, before it is killed.
const GRACE: Duration = Duration::from_millis(500);
/// How much of its standard error is kept: the end.
const KEPT: usize = 4 << 10;
/// How many messages are read ahead, and how many may wait to be written.
const AHEAD: usize = 64;
/// How many lines in a row may be no message.
const MAX_GARBAGE: usize = 1_000;
/// A shorter value of a variable is not looked for in what a program writes.
const MIN_SECRET: usize = 6;

/// What scripts end in: an interpreter is given one, and reads its directory.
const SCRIPTS: [&str; 12] = ["py", "js", "mjs", "cjs", "ts", "mts", "cts", "rb", "pl", "php", "sh", "lua"];

/// A line that is to be written, and who wants to know that it was.
type Outgoing = (Vec<u8>, oneshot::Sender<bool>);

/// The end of what a program wrote to standard error, and how it ended.
#[derive(Clone, Default)]
pub(super) struct Errors {
    kept: Arc<Mutex<VecDeque<u8>>>,
    masks: Masks,
    ended: Arc<OnceLock<Verdict>>,
}

impl Errors {
    fn keep(&self, text: &[u8]) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(text.get(text.len().saturating_sub(KEPT)..).unwrap_or_default());
        let excess = kept.len().saturating_sub(KEPT);
        kept.drain(..excess);
    }

    /// The text, without the values of the program's variables and without control characters.
    pub(super) fn text(&self) -> String {
        let bytes: Vec<u8> =
            self.kept.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        let masked = if bytes.len() < KEPT { self.masks.bytes(bytes) } else { self.masks.tail(bytes) };
        let text = String::from_utf8_lossy(&masked);
        let plain: String = text.chars().filter(|letter| *letter == '\n' || !letter.is_control()).collect();
        self.masks.text(&plain).trim().to_owned()
    }

    /// How the program ended by itself, after a short wait for its end.
    pub(super) async fn ended(&self) -> Option<&Verdict> {
        let until = Instant::now() + 2 * GRACE;
        while self.ended.get().is_none() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.ended.get()
    }
}

/// The standard streams of a program. Dropped, the program gets the end of its input and is killed soon after, with
/// everything that it started.
pub(super) struct Streams {
    incoming: mpsc::Receiver<ServerJsonRpcMessage>,
    outgoing: Option<mpsc::Sender<Outgoing>>,
    running: Option<Running>,
    errors: Errors,
}

/// Why a message was not sent.
#[derive(Debug)]
pub(super) struct Unsent(&'static str);

impl std::fmt::Display for Unsent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Unsent {}

impl Arrival for Unsent {
    /// A line without its end is no message.
    fn surely_did_not_arrive(&self) -> bool {
        true
    }
}

/// What is started.
pub(super) struct Start<'a> {
    pub(super) argv: &'a [std::ffi::OsString],
    pub(super) env: &'a [(String, std::ffi::OsString)],
    pub(super) dir: Option<&'a Path>,
    pub(super) level: Level,
}

/// Starts the program.
pub(super) async fn start(settings: &Settings, start: Start<'_>) -> Result<(Streams, Errors), ToolError> {
    if start.argv.is_empty() {
        return Err(ToolError::invalid_input("the command of the server is empty"));
    }
    let argv = start.argv.to_vec();
    let grants = settings.granted.grants();
    let level = grants.level.unwrap_or(start.level);
    let mut limits = settings.sandbox_limits.clone().unwrap_or_else(|| {
        let mut limits = Limits::for_level(level);
        (limits.cpu, limits.idle) = (None, None);
        limits
    });
    limits.wall = limits.wall.max(LIFETIME);
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
        for path in settings.readable.iter().chain(&own_paths(&argv)) {
            sandbox = sandbox.read_only(path);
        }
    }
    for (name, value) in start.env {
        sandbox = sandbox.env(name, value.clone());
    }
    let secrets = start
        .env
        .iter()
        .filter_map(|(_, value)| value.to_str())
        .filter(|value| value.len() >= MIN_SECRET)
        .chain(settings.granted.values())
        .map(Secret::new);
    let errors = Errors { kept: Arc::default(), masks: Masks::new(secrets), ended: Arc::default() };
    let masks = Masks::new(settings.granted.values().map(Secret::new));
    let (program, limit) = (Program::argv(argv), settings.limits.message_bytes);
    let theirs = errors.clone();
    // Making a sandbox blocks for a millisecond.
    let check = settings.start_check.clone();
    let start = move || {
        check.as_ref().map_or(Ok(()), StartCheck::check)?;
        begin(&sandbox, &program, limit, theirs, masks)
    };
    let streams = tokio::task::spawn_blocking(start).await??;
    if let Some(running) = &streams.running {
        settings.report(&StartEvent::Started { shown: running.shown() });
    }
    Ok((streams, errors))
}

/// What a server reads of its own: the directory of its program, and its script with that one's directory.
fn own_paths(argv: &[OsString]) -> Vec<PathBuf> {
    let is_script = |path: &&Path| {
        let kind = path.extension().unwrap_or_default();
        path.is_absolute() && SCRIPTS.iter().any(|script| kind == *script) && path.is_file()
    };
    let program = argv.first().map(Path::new).filter(|path| path.is_absolute());
    let script = argv.iter().skip(1).map(Path::new).find(is_script);
    let own = program.into_iter().chain(script).flat_map(program_directories);
    own.chain(script.map(Path::to_owned)).collect()
}

/// `errors` takes standard error; `masks` are masked in messages.
fn begin(
    sandbox: &Sandbox,
    program: &Program,
    limit: usize,
    errors: Errors,
    masks: Masks,
) -> Result<Streams, ToolError> {
    let mut running = sandbox.start(program).map_err(of_sandbox)?;
    let (sender, incoming) = mpsc::channel(AHEAD);
    let (outgoing, lines) = mpsc::channel(AHEAD);
    let directory = running.host_directory();
    if let Some((stdout, stderr)) = running.take_output() {
        let (directory, errors) = (directory.clone(), errors.clone());
        thread("mcp-stdout", move || listen(stdout, limit, &masks, &sender, &directory))?;
        thread("mcp-stderr", move || collect(stderr, &errors))?;
    }
    if let Some(stdin) = running.take_stdin() {
        thread("mcp-stdin", move || write(stdin, lines, &directory))?;
    }
    Ok(Streams { incoming, outgoing: Some(outgoing), running: Some(running), errors })
}

/// Reads messages until the stream or the client ends, or nothing but garbage comes.
fn listen(
    stdout: PipeReader,
    limit: usize,
    masks: &Masks,
    sender: &mpsc::Sender<ServerJsonRpcMessage>,
    directory: &HostDirectory,
) {
    let mut lines = LineReader::new(BufReader::with_capacity(64 << 10, stdout), limit);
    let mut garbage = 0;
    while let Ok(Some(line)) = lines.next_line() {
        if matches!(&line, Line::Whole(text) if text.iter().all(u8::is_ascii_whitespace)) {
            continue;
        }
        match read(&masked(line, masks)) {
            Some(message) => {
                garbage = 0;
                // What a request changed is on the host when its answer is read.
                if let Err(error) = directory.apply() {
                    tracing::warn!("changes of a server were not applied: {error}");
                }
                if sender.blocking_send(message).is_err() {
                    return;
                }
            }
            None => {
                garbage += 1;
                if garbage > MAX_GARBAGE {
                    tracing::warn!("a server wrote more than {MAX_GARBAGE} lines that are no messages");
                    return;
                }
            }
        }
    }
}

/// The line without secrets.
fn masked(line: Line, masks: &Masks) -> Line {
    match line {
        Line::Whole(text) => Line::Whole(masks.bytes(text)),
        Line::TooLong(start) => Line::TooLong(masks.bytes(start)),
    }
}

fn collect(mut stderr: PipeReader, errors: &Errors) {
    let mut piece = [0; 8 << 10];
    loop {
        match stderr.read(&mut piece) {
            Ok(0) => return,
            Ok(read) => errors.keep(piece.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

fn write(mut stdin: PipeWriter, mut lines: mpsc::Receiver<Outgoing>, directory: &HostDirectory) {
    while let Some((line, written)) = lines.blocking_recv() {
        directory.refresh();
        let good = stdin.write_all(&line).is_ok();
        // Whoever waited may be gone.
        let _ = written.send(good);
        if !good {
            return;
        }
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), ToolError> {
    match std::thread::Builder::new().name(name.to_owned()).spawn(work) {
        Ok(_) => Ok(()),
        Err(error) => Err(ToolError::overloaded(format!("no thread could be started: {error}"))),
    }
}

/// Why a program could not be started.
fn of_sandbox(error: toolpost_sandbox::Error) -> ToolError {
    use toolpost_sandbox::Error;
    let message = format!("the server could not be started: {error}");
    let hint = error.hint();
    let made = match &error {
        Error::LevelUnavailable { .. } | Error::EgressUnavailable { .. } => ToolError::permission(message),
        Error::TooLarge { .. } => ToolError::limit(message),
        Error::Workspace { .. } => ToolError::precondition(message),
        _ => ToolError::dependency(message),
    };
    made.suggest_maybe(hint).caused_by(error)
}

async fn send(outgoing: Option<mpsc::Sender<Outgoing>>, line: Option<Vec<u8>>) -> Result<(), Unsent> {
    let gone = || Unsent("the server has ended");
    let line = line.ok_or(Unsent("the message has no JSON form"))?;
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
    /// Ends the program's input, and the program a little later, without waiting for it.
    fn end(&mut self) {
        self.outgoing = None;
        self.incoming.close();
        let Some(running) = self.running.take() else { return };
        let ended = Arc::clone(&self.errors.ended);
        let wait = move || {
            let until = Instant::now() + GRACE;
            while !running.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            if running.is_finished()
                && let Ok(outcome) = running.wait()
            {
                // There is one end.
                let _ = ended.set(outcome.verdict);
            }
        };
        // A program whose end nobody can wait for is killed at once.
        match tokio::runtime::Handle::try_current() {
            // A runtime that ends waits for what blocks, so that nothing of the program stays.
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
