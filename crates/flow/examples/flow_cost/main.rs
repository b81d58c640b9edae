//! The cost of a step: in memory and durable, wide, layered, as a chain and as a map, beside asyncio, `LangGraph`, Dask and
//! Prefect in one run.
//!
//! `cargo run --release -p toolpost-flow --example flow_cost`; `--json` prints one object for `cargo xtask bench`. Peers that
//! are not installed are omitted and reported.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a program for people and for the bench, which starts its peers"
)]

use std::collections::BTreeMap;
use std::future::IntoFuture as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use toolpost_core::{Commit, Committed, DocStore, Output, Patch, ToolSpec, Write, tool_fn};
use toolpost_flow::{Durability, Flows, Plan, RunStatus};
use toolpost_store::Store;
use toolpost_toolbox::Toolbox;

/// Rounds of each measurement; the fastest counts.
const ROUNDS: usize = 3;
/// The items of the map whose memory is measured.
const ITEMS: usize = 1_000_000;
/// Set for this program as the process whose memory is measured: its number of items.
const MEMORY: &str = "--memory-of-a-map";
/// The peers: name, argument of `peers.py`, environment of `cargo xtask bench`.
const PEERS: [(&str, &str, &str); 4] = [
    ("asyncio", "asyncio", "flow-env"),
    ("LangGraph", "langgraph", "flow-env"),
    ("Dask", "dask", "flow-env"),
    ("Prefect", "prefect", "prefect-env"),
];

fn steps(count: usize, needs: impl Fn(usize) -> Vec<usize>) -> Arc<Plan> {
    let steps: Vec<Value> = (0..count)
        .map(|number| {
            let needs: Vec<String> = needs(number).into_iter().map(|need| format!("s{need}")).collect();
            json!({ "id": format!("s{number}"), "tool": "noop", "needs": needs })
        })
        .collect();
    Arc::new(Plan::from_value(&json!({ "steps": steps })).unwrap())
}

fn wide(count: usize) -> Arc<Plan> {
    steps(count, |_| Vec::new())
}

fn chain(count: usize) -> Arc<Plan> {
    steps(count, |number| number.checked_sub(1).into_iter().collect())
}

/// Layers of ten steps, each of which needs two of the layer above.
fn layered(count: usize) -> Arc<Plan> {
    steps(count, |number| match (number / 10 * 10).checked_sub(10) {
        Some(above) => vec![above + number % 10, above + (number + 1) % 10],
        None => Vec::new(),
    })
}

/// A map over the input.
fn map() -> Arc<Plan> {
    let each = json!({
        "id": "each", "map": "${{ input.items }}", "max_parallel": 64, "steps": [{ "id": "s", "tool": "noop" }],
    });
    Arc::new(
        Plan::from_value(&json!({ "input": { "items": { "type": "array" } }, "steps": [each] })).unwrap(),
    )
}

fn toolbox() -> Toolbox {
    let noop = tool_fn(ToolSpec::new("noop", "Do nothing."), async |_, _| Ok(Output::json(json!(1))));
    Toolbox::builder().tool(noop).build().unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Microseconds per step of one round.
fn round(
    runtime: &tokio::runtime::Runtime,
    flows: &Flows,
    plan: &Arc<Plan>,
    count: usize,
    durability: Durability,
) -> f64 {
    let has_items = plan.input().required().next().is_some();
    let input = if has_items { json!({ "items": vec![0; count] }) } else { Value::Null };
    let begun = Instant::now();
    let outcome =
        runtime.block_on(flows.run(Arc::clone(plan), input).durability(durability).into_future()).unwrap();
    assert_eq!(outcome.status, RunStatus::Succeeded, "{:?}", outcome.error);
    begun.elapsed().as_secs_f64() * 1e6 / count as f64
}

/// Microseconds of a commit of one small document.
fn raw_commit(runtime: &tokio::runtime::Runtime, file: &Path) -> f64 {
    const COUNT: u64 = 500;
    let store = Store::open(file).unwrap();
    runtime.block_on(async {
        let begun = Instant::now();
        for number in 0..COUNT {
            let (old, new) = (json!({ "n": number }), json!({ "n": number + 1 }));
            let old = if number == 0 { Value::Null } else { old };
            let patch = Patch::diff(&old, &new).to_value();
            let write = Write { id: "raw".to_owned(), base: number, patch, value: Arc::new(new) };
            match store.commit(Commit { writes: vec![write], ..Commit::default() }).await.unwrap() {
                Committed::Done(_) => {}
                Committed::Conflict(newer) => panic!("another writer: {newer:?}"),
            }
        }
        begun.elapsed().as_secs_f64() * 1e6 / COUNT as f64
    })
}

/// The peak of this process's resident memory, in MiB.
fn peak_memory() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<f64>().unwrap() / 1024.0
}

/// The peak of a process that runs a map over so many items.
fn memory_of_map(items: usize) -> f64 {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).args([MEMORY, &items.to_string()]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.trim().parse().unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

/// Microseconds per task by shape and number of tasks; none if the peer does not run.
fn peer(name: &str, argument: &str, environment: &str) -> BTreeMap<(String, usize), f64> {
    let own = format!(".dev/{environment}/bin/python3");
    let program = if Path::new(&own).exists() { own.as_str() } else { "python3" };
    let code = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/flow_cost/peers.py");
    let output = match Command::new(program).arg(code).arg(argument).output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("SKIP {name}: {program}: {error}");
            return BTreeMap::new();
        }
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let rows: BTreeMap<_, _> = text
        .lines()
        .filter_map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
            [shape, count, cost] => Some(((shape.to_owned(), count.parse().ok()?), cost.parse().ok()?)),
            _ => None,
        })
        .collect();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        eprintln!("SKIP {name}: {}", errors.lines().last().unwrap_or("it printed no error"));
    }
    rows
}

/// The rows, for people and for the bench.
#[derive(Default)]
struct Rows {
    is_json: bool,
    rows: Vec<Value>,
}

impl Rows {
    fn add(&mut self, name: &str, value: f64, unit: &str, max: Option<f64>) {
        let mut row = json!({ "name": name, "value": (value * 1000.0).round() / 1000.0, "unit": unit });
        if let Some(max) = max {
            row["promise"] = format!("≤ {max} {unit}").into();
            row["promise_max"] = max.into();
        }
        if !self.is_json {
            let target =
                max.map(|max| if value <= max { format!("≤ {max}") } else { format!("≤ {max}: MISSED") });
            println!("{name:56} {value:12.3} {unit:8} {}", target.unwrap_or_default());
        }
        self.rows.push(row);
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let runtime = runtime();
    let memory = Flows::new(toolbox());
    if let [word, items] = &words[..]
        && word == MEMORY
    {
        round(&runtime, &memory, &map(), items.parse().unwrap(), Durability::None);
        println!("{}", peak_memory());
        return;
    }
    let mut rows = Rows { is_json: words.contains(&"--json".to_owned()), ..Rows::default() };
    let directory = tempfile::tempdir().unwrap();
    let stored = memory.clone().store(Arc::new(Store::open(directory.path().join("store")).unwrap()));
    let best = |flows: &Flows, plan: &Arc<Plan>, count: usize, durability: Durability| {
        let rounds = (0..ROUNDS).map(|_| round(&runtime, flows, plan, count, durability));
        rounds.fold(f64::INFINITY, f64::min)
    };
    let mut own: BTreeMap<(String, usize), f64> = BTreeMap::new();
    let mut in_memory = |shape: &str, plan: &Arc<Plan>, count: usize| {
        let value = best(&memory, plan, count, Durability::None);
        own.insert((shape.to_owned(), count), value);
        value
    };
    let mut costs = Vec::new();
    for count in [200, 1_000, 10_000, 100_000, 1_000_000] {
        let value = in_memory("wide", &wide(count), count);
        if count >= 1_000 {
            costs.push(value);
            let max = (count == 100_000).then_some(3.0);
            rows.add(&format!("wide, {count} steps"), value, "µs/step", max);
        }
    }
    let flat = |costs: &[f64]| {
        costs.iter().fold(0.0, |most, cost| f64::max(most, *cost))
            / costs.iter().fold(f64::INFINITY, |least, cost| f64::min(least, *cost))
    };
    rows.add("wide, the highest cost over the lowest", flat(&costs), "×", Some(1.5));
    for count in [100, 1_000, 10_000] {
        let value = in_memory("chain", &chain(count), count);
        if count == 10_000 {
            rows.add("chain, 10000 steps", value, "µs/step", None);
        }
    }
    let value = in_memory("layered", &layered(10_000), 10_000);
    rows.add("layered, 10000 steps", value, "µs/step", Some(2.0));
    let mut costs = Vec::new();
    for count in [1_000, 10_000, 100_000, ITEMS] {
        let value = best(&memory, &map(), count, Durability::None);
        costs.push(value);
        rows.add(&format!("map, {count} items"), value, "µs/item", Some(3.0));
    }
    rows.add("map, the highest cost over the lowest", flat(&costs), "×", Some(1.5));
    let (small, large) = (memory_of_map(1_000), memory_of_map(ITEMS));
    rows.add("map, 1000000 items, peak memory", large, "MiB", Some(256.0));
    rows.add("map, memory of an item", (large - small) * 1_048_576.0 / ITEMS as f64, "bytes", None);
    let plan = wide(10_000);
    let value = best(&stored, &plan, 10_000, Durability::Full);
    rows.add("wide, 10000 steps, durability full", value, "µs/step", Some(20.0));
    let value = best(&stored, &plan, 10_000, Durability::Normal);
    rows.add("wide, 10000 steps, durability normal", value, "µs/step", Some(20.0));
    // The disk varies: each round has both.
    let plan = chain(500);
    let rounds = (0..ROUNDS).map(|number| {
        let link = round(&runtime, &stored, &plan, 500, Durability::Full);
        (link, raw_commit(&runtime, &directory.path().join(format!("raw{number}"))))
    });
    let (link, raw) = rounds.min_by(|one, other| (one.0 / one.1).total_cmp(&(other.0 / other.1))).unwrap();
    rows.add("chain, 500 steps, durability full", link, "µs/step", None);
    rows.add("one commit of one document", raw, "µs", None);
    rows.add("a durable link over a commit", link / raw, "×", Some(1.3));
    for (name, argument, environment) in PEERS {
        for ((shape, count), value) in peer(name, argument, environment) {
            rows.add(&format!("{name}: {shape}, {count} tasks"), value, "µs/task", None);
            if let Some(own) = own.get(&(shape.clone(), count)) {
                rows.add(&format!("{name} over ours: {shape}, {count}"), value / own, "×", None);
            }
        }
    }
    if rows.is_json {
        println!("{}", json!({ "rows": rows.rows }));
    }
}
