//! The agent loop beside its peers, in one run against the same loopback provider.
//!
//! `cargo run --release -p toolpost-agent --example loop_peers`; `--json` prints one object for `cargo xtask bench`. Peers
//! that are not installed are omitted and reported.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program for people and for the bench, which starts its peers"
)]

extern crate toolpost_core as toolpost;

mod provider;

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost::tool;
use toolpost_agent::{Agent, RunStopReason};
use toolpost_llm::{HostedModel, HttpClient, HttpOptions, Provider, ProviderAccess, Secret};
use toolpost_toolbox::Toolbox;

use crate::provider::CALLS;

/// Agents at once.
const AGENTS: usize = 100;
/// Rounds of all agents of ours; the peers run once, since they take long.
const ROUNDS: usize = 40;
/// Starts of a process of ours until its first request.
const STARTS: usize = 200;
/// The figure of a peer, which takes long.
const PEER_STARTS: usize = 10;
/// The interval of checks of a start.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// Add two numbers.
#[tool]
async fn add(
    /// The first.
    a: i64,
    /// The second.
    b: i64,
) -> i64 {
    a + b
}

fn agent(url: &str) -> Agent {
    let access = ProviderAccess { base_url: Some(url.to_owned()), ..ProviderAccess::new(Secret::new("key")) };
    let client = HttpClient::new(HttpOptions::default()).unwrap();
    let provider = Provider::find("anthropic").unwrap();
    let model = Arc::new(HostedModel::new(provider, "claude-x", access, client).unwrap());
    Agent::builder(model, Toolbox::builder().tool(add).build().unwrap()).build()
}

async fn converse(agent: &Agent) {
    let outcome = agent.run("What is 2 + 3?").finish().await;
    assert_eq!((&outcome.stop, outcome.text()), (&RunStopReason::EndTurn, "done"), "{:?}", outcome.error);
}

/// Processor time of this process, in seconds.
fn processor_time() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text.rsplit(") ").next().unwrap().split(' ').collect();
    // User and system time, in hundredths.
    fields[11..13].iter().map(|field| field.parse::<f64>().unwrap() / 100.0).sum()
}

/// The most memory that this process has had resident, in MiB.
fn most_memory() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().split(' ').next().unwrap().parse::<f64>().unwrap() / 1024.0
}

/// The cost of one: processor milliseconds for an iteration, iterations a second, MiB.
struct Figures {
    cpu_ms: f64,
    per_second: f64,
    mib: f64,
}

/// Ours, in a process of its own that has done nothing else.
fn ours(url: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let agent = agent(url);
        converse(&agent).await;
        let (before, begun) = (processor_time(), Instant::now());
        for _ in 0..ROUNDS {
            let runs = (0..AGENTS).map(|_| {
                let agent = agent.clone();
                tokio::spawn(async move { converse(&agent).await })
            });
            for run in futures_util::future::join_all(runs).await {
                run.unwrap();
            }
        }
        let iterations = (ROUNDS * AGENTS * (CALLS + 1)) as f64;
        let (cpu, wall) = (processor_time() - before, begun.elapsed().as_secs_f64());
        println!(
            "{}",
            json!({"cpu_ms": cpu * 1000.0 / iterations, "per_second": iterations / wall, "mib": most_memory()})
        );
    });
}

/// One agent that asks once, for the time from the start of a process to its request.
fn once(url: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(agent(url).run("hi").finish());
}

/// Milliseconds from the start of a process to the end of the head of its first request, the tenth percentile of some
/// starts. `command` makes the process that asks an address. `None` if one ends without a request, which is said.
fn first_request(name: &str, starts: usize, command: impl Fn(&str) -> Command) -> Option<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut samples = Vec::with_capacity(starts);
    for _ in 0..starts {
        let begun = Instant::now();
        let mut child = quiet(command(&url)).spawn().ok()?;
        let mut stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(_) if child.try_wait().unwrap().is_none() => std::thread::sleep(LOOK_AGAIN),
                Err(_) => {
                    eprintln!("the first request of {name} is omitted: it ends without one");
                    return None;
                }
            }
        };
        let mut seen = Vec::new();
        let mut piece = [0; 4096];
        while !seen.windows(4).any(|window| window == b"\r\n\r\n") {
            let length = stream.read(&mut piece).unwrap();
            assert!(length > 0, "the request was cut");
            seen.extend_from_slice(&piece[..length]);
        }
        samples.push(begun.elapsed().as_secs_f64() * 1000.0);
        stream.write_all(b"HTTP/1.1 401 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
        drop(stream);
        child.wait().unwrap();
    }
    samples.sort_by(f64::total_cmp);
    Some(samples[starts / 10])
}

/// A process that says nothing.
fn quiet(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The command `toolpost run` with an address, with a home directory of its own. It is built beside the examples.
fn toolpost_run(home: &Path, url: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap().with_file_name("../toolpost"));
    command
        .args(["run", "--model", "anthropic/claude-x", "-p", "What is 2 + 3?"])
        .current_dir(home)
        .env_clear();
    command.env("HOME", home).env("ANTHROPIC_API_KEY", "key").env("ANTHROPIC_BASE_URL", url);
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

fn itself(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments);
    command
}

/// The provider's process, until it is dropped.
struct Served {
    child: Child,
    url: String,
}

impl Served {
    fn start() -> Self {
        let mut child = itself(&["--serve"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        Self { child, url: url.trim().to_owned() }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Runs a program that prints figures. `None` if it cannot be started or fails, which is said.
fn figures(name: &str, mut command: Command) -> Option<Figures> {
    let output = command.stderr(Stdio::piped()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some(value) = text.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok()) else {
        let wrong = String::from_utf8_lossy(&output.stderr);
        eprintln!("{name} is omitted: {}", wrong.lines().last().unwrap_or("it says nothing"));
        return None;
    };
    let number = |name: &str| value[name].as_f64();
    Some(Figures { cpu_ms: number("cpu_ms")?, per_second: number("per_second")?, mib: number("mib")? })
}

/// A peer: its name, and the process that is measured with an address.
type Peer = (&'static str, Box<dyn Fn(&str) -> Command>);

fn peers() -> Vec<Peer> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/loop_peers");
    let with_url = |program: PathBuf, words: Vec<OsString>| -> Box<dyn Fn(&str) -> Command> {
        Box::new(move |url| {
            let mut command = Command::new(&program);
            command.args(&words).args([url, &AGENTS.to_string()]);
            command
        })
    };
    let mut peers: Vec<Peer> = [
        ("pydantic-ai, Messages", "agents-env", "pydantic_ai_anthropic"),
        ("pydantic-ai, Responses", "agents-env", "pydantic_ai_responses"),
        ("openai-agents", "agents-env", "openai_agents"),
        ("litellm", "litellm-env", "litellm"),
        ("llm-factory-toolkit", "toolkit-env", "llm_factory_toolkit"),
    ]
    .into_iter()
    .map(|(name, environment, library)| {
        let program = root.join(".dev").join(environment).join("bin/python3");
        (name, with_url(program, vec![here.join("peers.py").into(), library.into()]))
    })
    .collect();
    let module = root.join(".dev/peers/ai_sdk.mjs");
    // Modules of npm are looked for beside the file.
    if std::fs::copy(here.join("ai_sdk.mjs"), &module).is_ok() {
        peers.push(("AI SDK, Messages", with_url("node".into(), vec![module.into()])));
    }
    peers
}

/// The row of a start of ours.
fn first_row(name: &str, milliseconds: f64) -> Value {
    json!({"name": format!("{name}, start to first request"), "value": milliseconds, "unit": "ms",
        "promise": "≤ 10 ms", "promise_max": 10})
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--serve"] => return provider::serve(),
        ["--ours", url] => return ours(url),
        ["--once", url] => return once(url),
        _ => {}
    }
    let served = Served::start();
    let ours = figures("ours", itself(&["--ours", &served.url])).unwrap();
    let own = |url: &str| itself(&["--once", url]);
    let first = first_request("the library", STARTS, own).unwrap();
    let home = tempfile::tempdir().unwrap();
    let first_of_command = first_request("`toolpost run`", STARTS, |url| toolpost_run(home.path(), url));
    let mut rows = vec![
        json!({"name": format!("agent loop, processor time of one iteration, {AGENTS} agents"), "value": ours.cpu_ms,
            "unit": "ms", "promise": "≤ 0.15 ms", "promise_max": 0.15}),
        json!({"name": format!("agent loop, {AGENTS} agents on two threads"), "value": ours.per_second,
            "unit": "iterations/s", "promise": "≥ 5,000 iterations/s", "promise_min": 5_000}),
        json!({"name": format!("agent loop, most memory, {AGENTS} agents"), "value": ours.mib, "unit": "MiB",
            "promise": "≤ 25 MiB", "promise_max": 25}),
        first_row("an agent of ours", first),
    ];
    rows.extend(first_of_command.map(|first| first_row("`toolpost run`", first)));
    for (name, command) in peers() {
        let Some(figures) = figures(name, command(&served.url)) else { continue };
        rows.push(
            json!({"name": format!("{name}, processor time of one iteration"), "value": figures.cpu_ms,
            "unit": "ms"}),
        );
        rows.push(json!({"name": format!("{name}, processor time beside ours"),
            "value": figures.cpu_ms / ours.cpu_ms, "unit": "×"}));
        rows.push(json!({"name": format!("{name}, {AGENTS} agents"), "value": figures.per_second,
            "unit": "iterations/s"}));
        rows.push(json!({"name": format!("{name}, most memory"), "value": figures.mib, "unit": "MiB"}));
        // An answer of 401 ends it at its first request.
        rows.extend(first_request(name, PEER_STARTS, command).map(
            |first| json!({"name": format!("{name}, start to first request"), "value": first, "unit": "ms"}),
        ));
    }
    if arguments.iter().any(|argument| argument == "--json") {
        println!("{}", json!({ "rows": rows }));
    } else {
        for row in rows {
            println!(
                "{:>12.3} {:<13} {}",
                row["value"].as_f64().unwrap(),
                row["unit"].as_str().unwrap(),
                row["name"].as_str().unwrap()
            );
        }
    }
}
