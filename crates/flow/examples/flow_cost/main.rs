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

/// The minimum number of rounds of each measurement; the fastest counts.
const ROUNDS: usize = 3;
/// The steps of all rounds of a measurement in memory: a short run needs more rounds.
const STEPS: usize = 300_000;
/// The largest plan, and the items of the largest map.
const MILLION: usize = 1_000_000;
/// Set for this program as the process of one measurement in memory, with the shape and the number of steps.
const MEASURE: &str = "--measure";
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

/// The cost of a step in memory in a process of its own, so that no measurement pays for the heap of another one, and the
/// peak of its memory.
fn measure(shape: &str, count: usize) -> (f64, f64) {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).args([MEASURE, shape, &count.to_string()]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    match text.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>().as_deref() {
        Ok([cost, memory]) => (*cost, *memory),
        _ => panic!("{}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// The process of one measurement.
fn measured(shape: &str, count: usize) {
    let plan = match shape {
        "wide" => wide(count),
        "chain" => chain(count),
        "layered" => layered(count),
        _ => map(),
    };
    let (runtime, flows) = (runtime(), Flows::new(toolbox()));
    let rounds = ROUNDS.max(STEPS / count);
    let rounds = (0..rounds).map(|_| round(&runtime, &flows, &plan, count, Durability::None));
    println!("{} {}", rounds.fold(f64::INFINITY, f64::min), peak_memory());
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

fn highest_over_lowest(costs: &[f64]) -> f64 {
    let highest = costs.iter().copied().fold(0.0, f64::max);
    highest / costs.iter().copied().fold(f64::INFINITY, f64::min)
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
    if let [word, shape, count] = &words[..]
        && word == MEASURE
    {
        return measured(shape, count.parse().unwrap());
    }
    let mut rows = Rows { is_json: words.contains(&"--json".to_owned()), ..Rows::default() };
    let mut own: BTreeMap<(String, usize), f64> = BTreeMap::new();
    let mut in_memory = |shape: &str, count: usize| {
        let (cost, memory) = measure(shape, count);
        own.insert((shape.to_owned(), count), cost);
        (cost, memory)
    };
    // For the peers that take long.
    for (shape, count) in [("wide", 200), ("chain", 100), ("chain", 1_000)] {
        in_memory(shape, count);
    }
    let mut costs = Vec::new();
    for count in [1_000, 10_000, 100_000, MILLION] {
        let (cost, _) = in_memory("wide", count);
        costs.push(cost);
        rows.add(&format!("wide, {count} steps"), cost, "µs/step", (count == 100_000).then_some(3.0));
    }
    rows.add("wide, the highest cost over the lowest", highest_over_lowest(&costs), "×", None);
    rows.add("chain, 10000 steps", in_memory("chain", 10_000).0, "µs/step", None);
    rows.add("layered, 10000 steps", in_memory("layered", 10_000).0, "µs/step", Some(2.0));
    let (mut costs, mut peaks) = (Vec::new(), Vec::new());
    for count in [1_000, 10_000, 100_000, MILLION] {
        let (cost, peak) = in_memory("map", count);
        costs.push(cost);
        peaks.push(peak);
        rows.add(&format!("map, {count} items"), cost, "µs/item", Some(3.0));
    }
    rows.add("map, the highest cost over the lowest", highest_over_lowest(&costs), "×", Some(1.5));
    let (small, large) = (peaks[0], peaks[3]);
    rows.add("map, 1000000 items, peak memory", large, "MiB", Some(256.0));
    rows.add("map, memory of an item", (large - small) * 1_048_576.0 / MILLION as f64, "bytes", None);
    let runtime = runtime();
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    let stored = Flows::new(toolbox()).store(Arc::new(store));
    let best = |plan: &Arc<Plan>, count: usize, durability: Durability| {
        let rounds = (0..ROUNDS).map(|_| round(&runtime, &stored, plan, count, durability));
        rounds.fold(f64::INFINITY, f64::min)
    };
    let plan = wide(10_000);
    let value = best(&plan, 10_000, Durability::Full);
    rows.add("wide, 10000 steps, durability full", value, "µs/step", Some(20.0));
    let value = best(&plan, 10_000, Durability::Normal);
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
