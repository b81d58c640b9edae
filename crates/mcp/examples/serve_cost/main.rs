//! The cost of serving, over HTTP and over standard streams, beside a bare server of the library below, `FastMCP` and the
//! TypeScript libraries: one client, 32 clients, start to the first answer, idle memory, and 10,000 sessions that nobody
//! ends.
//!
//! Prints one object for `cargo xtask bench`. Each server is a process of its own; the client is this one. What is not
//! installed leaves its rows out.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a program for the bench, which starts itself as a server"
)]

mod client;
mod servers;

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use client::{Client, Piped, Started};
use servers::{Contestant, Era};

const SAMPLES: usize = 1_000;
const CLIENTS: usize = 32;
const LOAD: Duration = Duration::from_secs(2);
const STARTS: usize = 10;
const SESSIONS: usize = 10_000;
/// The number of turns of ours and the bare library.
const ROUNDS: usize = 3;
const PEERS: [Contestant; 4] = [
    Contestant::FastMcp(Era::Session),
    Contestant::FastMcp(Era::Stateless),
    Contestant::TypeScript,
    Contestant::TypeScript2,
];

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap()
}

/// The figures of a load over HTTP.
struct Load {
    /// Half of the calls of one client take at most this, in ms.
    median: f64,
    /// Calls a second of all clients together.
    rate: f64,
    /// Processor time of the server for one call, in µs.
    processor: f64,
}

fn load(server: &Started) -> Load {
    let mut client = server.client();
    let samples = (0..SAMPLES).map(|_| {
        let begun = Instant::now();
        client.call();
        begun.elapsed().as_secs_f64() * 1e3
    });
    let median = median(samples.collect());
    let clients: Vec<_> = (0..CLIENTS).map(|_| server.client()).collect();
    let (before, begun) = (server.processor(), Instant::now());
    let threads: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            std::thread::spawn(move || {
                let mut calls = 0_u64;
                while begun.elapsed() < LOAD {
                    client.call();
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    let calls: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    let rate = calls as f64 / begun.elapsed().as_secs_f64();
    Load { median, rate, processor: (server.processor() - before) / calls as f64 }
}

/// The figures of some rounds, one by one in the middle.
fn middle(loads: &[Load], figure: fn(&Load) -> f64) -> f64 {
    median(loads.iter().map(figure).collect())
}

fn row(name: impl Into<String>, value: f64, unit: &str) -> Value {
    json!({ "name": name.into(), "value": value, "unit": unit })
}

fn at_most(name: &str, value: f64, unit: &str, most: f64) -> Value {
    json!({ "name": name, "value": value, "unit": unit, "promise": format!("≤ {most} {unit}"), "promise_max": most })
}

fn at_least(name: &str, value: f64, unit: &str, least: f64) -> Value {
    json!({ "name": name, "value": value, "unit": unit, "promise": format!("≥ {least} {unit}"), "promise_min": least })
}

fn http(rows: &mut Vec<Value>) {
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(load(&Started::new(Contestant::Ours).unwrap()));
        bare.push(load(&Started::new(Contestant::Bare).unwrap()));
    }
    let rate = middle(&ours, |load| load.rate);
    let processor = middle(&ours, |load| load.processor);
    let beside = processor / middle(&bare, |load| load.processor);
    rows.extend([
        at_most("MCP over HTTP, one client, p50", middle(&ours, |load| load.median), "ms", 0.2),
        row("MCP over HTTP, one client, p50: the bare library", middle(&bare, |load| load.median), "ms"),
        row("MCP over HTTP, 32 clients", rate, "calls/s"),
        row("MCP over HTTP, 32 clients: the bare library", middle(&bare, |load| load.rate), "calls/s"),
        row("MCP over HTTP, processor time per call", processor, "µs"),
        at_most("MCP over HTTP, processor time per call, beside the bare library", beside, "×", 1.3),
    ]);
    let mut fastest: f64 = 0.0;
    for peer in PEERS {
        let name = peer.name();
        let Some(server) = Started::new(peer) else {
            eprintln!("SKIP {name}: not installed");
            continue;
        };
        let idle = server.memory();
        let load = load(&server);
        if matches!(peer, Contestant::FastMcp(_)) {
            fastest = fastest.max(load.rate);
        }
        rows.extend([
            row(format!("MCP over HTTP, one client, p50: {name}"), load.median, "ms"),
            row(format!("MCP over HTTP, 32 clients: {name}"), load.rate, "calls/s"),
            row(format!("MCP over HTTP, 32 clients: times the calls of {name}"), rate / load.rate, "×"),
            row(format!("MCP over HTTP, processor time per call: {name}"), load.processor, "µs"),
            row(
                format!("MCP server, start to the first answer: {name}"),
                server.ready.as_secs_f64() * 1e3,
                "ms",
            ),
            row(format!("MCP server, idle memory: {name}"), idle, "MiB"),
        ]);
    }
    if fastest > 0.0 {
        rows.push(at_least(
            "MCP over HTTP, 32 clients: times the calls of FastMCP at its fastest",
            rate / fastest,
            "×",
            15.0,
        ));
    }
}

fn life(rows: &mut Vec<Value>) {
    let starts = (0..STARTS).map(|_| Started::new(Contestant::Ours).unwrap().ready.as_secs_f64() * 1e3);
    rows.push(at_most(
        "MCP server, start to the first answer, process included",
        median(starts.collect()),
        "ms",
        20.0,
    ));
    let server = Started::new(Contestant::Ours).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    rows.push(at_most("MCP server, idle memory", server.memory(), "MiB", 15.0));
    let mut client = Client::beginning(server.address);
    for _ in 0..SESSIONS {
        client.send();
    }
    let flood = server.memory();
    rows.push(at_most("MCP server, memory after 10,000 sessions that nobody ended", flood, "MiB", 128.0));
}

fn pipes(rows: &mut Vec<Value>) {
    for window in [1, CLIENTS] {
        let (mut ours, mut bare, mut types) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let rate = |contestant| Piped::new(contestant).map(|mut piped| piped.rate(window, LOAD));
            ours.extend(rate(Contestant::Ours));
            bare.extend(rate(Contestant::Bare));
            types.extend(rate(Contestant::TypeScript));
        }
        let ours = median(ours);
        let bare = median(bare);
        let title = format!("MCP over standard streams, {window} under way");
        rows.extend([
            row(&title, ours, "calls/s"),
            at_least(&format!("{title}: times the bare library"), ours / bare, "×", 1.0),
        ]);
        if types.is_empty() {
            eprintln!("SKIP the TypeScript SDK over standard streams: not installed");
        } else {
            let name = format!("{title}: times the TypeScript SDK 1");
            rows.push(at_least(&name, ours / median(types), "×", 1.0));
        }
        for peer in [Contestant::TypeScript2, Contestant::FastMcp(Era::Session)] {
            if let Some(mut piped) = Piped::new(peer) {
                let name = peer.name().trim_end_matches(", sessions");
                rows.push(row(format!("{title}: times {name}"), ours / piped.rate(window, LOAD), "×"));
            }
        }
    }
}

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [which, place] = arguments.as_slice() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        return match which.as_str() {
            "ours" => runtime.block_on(servers::ours(place)),
            _ => runtime.block_on(servers::bare(place)),
        };
    }
    let mut rows = Vec::new();
    http(&mut rows);
    life(&mut rows);
    pipes(&mut rows);
    println!("{}", json!({ "rows": rows }));
}
