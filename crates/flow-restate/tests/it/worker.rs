//! Workers: in this process, and as processes that can be killed.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use toolpost_core::{Args, Clock as _, Ctx, Output, SystemClock, ToolError, ToolSpec, tool_fn};
use toolpost_flow::{FlowEvent, StoredFlow};
use toolpost_flow_restate::{Worker, register};
use toolpost_toolbox::Toolbox;

/// Set for this program as a worker: the address to listen on.
const LISTEN: &str = "TOOLPOST_TEST_LISTEN";
/// The file to which the tools of such a worker append.
const LEDGER: &str = "TOOLPOST_TEST_LEDGER";

/// A worker of this process, until it is dropped.
pub(crate) struct Local {
    _end: oneshot::Sender<()>,
}

/// Serves a worker and registers it.
pub(crate) async fn local(worker: Worker, admin: &str) -> Local {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let services = worker.services();
    let (end, ended) = oneshot::channel::<()>();
    tokio::spawn(worker.serve(listener, ended));
    register(admin, &url, &services).await.unwrap();
    Local { _end: end }
}

/// A worker in a process of its own.
pub(crate) struct Process(Child);

impl Process {
    /// Starts this program as a worker.
    pub(crate) fn start(listen: SocketAddr, ledger: &Path) -> Self {
        #[expect(clippy::disallowed_methods, reason = "this test program itself, to be killed")]
        let mut command = Command::new(std::env::current_exe().unwrap());
        let child = command
            .args(["worker::serves_as_a_worker", "--exact", "--nocapture"])
            .env(LISTEN, listen.to_string())
            .env(LEDGER, ledger)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(30);
        while std::net::TcpStream::connect(listen).is_err() {
            assert!(std::time::Instant::now() < until, "the worker listens");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self(child)
    }

    /// Ends the process at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// The output of the tools of workers.
pub(crate) struct Ledger(PathBuf);

/// A begin or an end of an attempt.
pub(crate) struct Line {
    is_begin: bool,
    at: u64,
    /// The idempotency key.
    key: String,
}

impl Ledger {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    fn lines(&self) -> Vec<Line> {
        let text = std::fs::read_to_string(&self.0).unwrap();
        let read = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            Line { is_begin: words[0] == "begin", at: words[1].parse().unwrap(), key: words[2].to_owned() }
        };
        text.lines().map(read).collect()
    }

    /// The number of attempts that have ended.
    pub(crate) fn ends(&self) -> usize {
        self.lines().iter().filter(|line| !line.is_begin).count()
    }

    /// Waits until so many attempts have ended.
    pub(crate) async fn wait_for_ends(&self, count: usize) {
        while self.ends() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The keys of steps that began more than once.
    pub(crate) fn repeats(&self) -> Vec<String> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for line in self.lines().into_iter().filter(|line| line.is_begin) {
            *counts.entry(line.key).or_default() += 1;
        }
        counts.into_iter().filter(|(_, count)| *count > 1).map(|(key, _)| key).collect()
    }

    /// Checks that each step of a run began, with its key, and that none began after its end was stored.
    pub(crate) fn check_run(&self, run: &StoredFlow) {
        let lines = self.lines();
        for (at, event) in &run.events {
            let FlowEvent::StepSucceeded { step, .. } = event else { continue };
            let key = format!("{}/{step}", run.summary.id);
            let begins: Vec<u64> =
                lines.iter().filter(|line| line.is_begin && line.key == key).map(|line| line.at).collect();
            assert!(!begins.is_empty(), "{key} never began");
            assert!(begins.iter().all(|begin| *begin <= at.as_micros()), "{key} began after its end");
        }
    }
}

/// A tool that appends its idempotency key to the ledger when it begins and when it ends, after some milliseconds.
fn ledger_toolbox(ledger: PathBuf) -> Toolbox {
    let spec = ToolSpec::new("effect", "Write lines.").input(json!({
        "type": "object", "properties": { "ms": { "type": "integer" }, "value": {} }, "required": ["ms"],
    }));
    let effect = tool_fn(spec, move |args: Args, ctx: Ctx| {
        let ledger = ledger.clone();
        async move {
            let write = |word: &str| {
                let mut file = std::fs::OpenOptions::new().append(true).open(&ledger)?;
                let key = ctx.idempotency_key().unwrap_or_default();
                // One write, so that lines of several processes do not mix.
                let at = SystemClock.timestamp().as_micros();
                file.write_all(format!("{word} {at} {key}\n").as_bytes())
            };
            write("begin")?;
            tokio::time::sleep(Duration::from_millis(args.decode("ms")?)).await;
            write("end")?;
            Ok::<_, ToolError>(Output::json(args.get("value").cloned().unwrap_or_default()))
        }
    });
    Toolbox::builder().tool(effect).build().unwrap()
}

/// The process of a worker, if another test started it.
#[test]
#[expect(clippy::disallowed_methods, reason = "how the other tests start it")]
fn serves_as_a_worker() {
    let (Ok(listen), Some(ledger)) = (std::env::var(LISTEN), std::env::var_os(LEDGER)) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind(listen).await.unwrap();
        let worker = Worker::new(ledger_toolbox(ledger.into()));
        worker.serve(listener, std::future::pending::<()>()).await.unwrap();
    });
}
