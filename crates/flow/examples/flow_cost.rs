//! What a step costs: in memory and durable, wide, layered and as a chain, beside asyncio and `LangGraph`.
//!
//! `--json` prints one object for `cargo xtask bench`. A peer that is not installed is omitted.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a program for people and for the bench"
)]

use std::future::IntoFuture as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use toolpost_core::{Commit, Committed, DocStore, Output, Patch, ToolSpec, Write, tool_fn};
use toolpost_flow::{Durability, Flows, Plan, RunStatus};
use toolpost_store::Store;
use toolpost_toolbox::Toolbox;

/// Rounds of each measurement; the fastest counts.
const ROUNDS: usize = 3;
/// The Python that has the peers, where `cargo xtask bench` puts them.
const PEERS: &str = ".dev/flow-env/bin/python3";

/// Layered is layers of ten steps, each of which needs two of the layer above.
const PYTHON: &str = r"
import asyncio, sys, time
async def noop(): return 1
async def wide(n):
    async with asyncio.TaskGroup() as group:
        for _ in range(n): group.create_task(noop())
async def chain(n):
    for _ in range(n): await asyncio.create_task(noop())
def best(make, n):
    times = []
    for _ in range(3):
        begin = time.perf_counter(); asyncio.run(make(n)); times.append(time.perf_counter() - begin)
    return min(times) / n * 1e6
print(best(wide, 10000), best(wide, 100000), best(chain, 10000))
";

const LANGGRAPH: &str = r#"
import operator, time
from typing import Annotated, TypedDict
from langgraph.graph import StateGraph, START, END
from langgraph.types import Send
class State(TypedDict): out: Annotated[list, operator.add]
def fan(n):
    graph = StateGraph(State)
    graph.add_node("start", lambda state: {})
    graph.add_node("noop", lambda state: {"out": [1]})
    graph.add_edge(START, "start")
    graph.add_conditional_edges("start", lambda state: [Send("noop", {}) for _ in range(n)], ["noop"])
    graph.add_edge("noop", END)
    return graph.compile()
def best(n):
    graph, times = fan(n), []
    for _ in range(2):
        begin = time.perf_counter(); graph.invoke({"out": []}); times.append(time.perf_counter() - begin)
    return min(times) / n * 1e6
print(best(1000))
"#;

fn steps(count: usize, needs: impl Fn(usize) -> Vec<usize>) -> Plan {
    let steps: Vec<Value> = (0..count)
        .map(|number| {
            let needs: Vec<String> = needs(number).into_iter().map(|need| format!("s{need}")).collect();
            json!({ "id": format!("s{number}"), "tool": "noop", "needs": needs })
        })
        .collect();
    Plan::from_value(&json!({ "steps": steps })).unwrap()
}

/// A map over the input.
fn map() -> Plan {
    let each = json!({
        "id": "each", "map": "${{ input.items }}", "max_parallel": 64, "steps": [{ "id": "s", "tool": "noop" }],
    });
    Plan::from_value(&json!({ "input": { "items": { "type": "array" } }, "steps": [each] })).unwrap()
}

fn toolbox() -> Toolbox {
    let noop = tool_fn(ToolSpec::new("noop", "Do nothing."), async |_, _| Ok(Output::json(json!(1))));
    Toolbox::builder().tool(noop).build().unwrap()
}

/// Microseconds per step of the fastest round.
fn cost(
    runtime: &tokio::runtime::Runtime,
    flows: &Flows,
    plan: &Arc<Plan>,
    count: usize,
    durability: Durability,
) -> f64 {
    let has_items = plan.input().required().next().is_some();
    let input = if has_items { json!({ "items": vec![0; count] }) } else { Value::Null };
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let input = input.clone();
        let begun = Instant::now();
        let run = flows.run(Arc::clone(plan), input).durability(durability);
        let outcome = runtime.block_on(run.into_future()).unwrap();
        assert_eq!(outcome.status, RunStatus::Succeeded, "{:?}", outcome.error);
        best = best.min(begun.elapsed().as_secs_f64() * 1e6 / count as f64);
    }
    best
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

/// The numbers that a Python program prints; none if it does not run.
fn python(program: &str, code: &str) -> Vec<f64> {
    #[expect(clippy::disallowed_methods, reason = "the peer")]
    let output = std::process::Command::new(program).args(["-c", code]).output();
    let Ok(output) = output else { return Vec::new() };
    String::from_utf8_lossy(&output.stdout).split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn main() {
    let is_json = std::env::args().any(|word| word == "--json");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let memory = Flows::new(toolbox());
    let stored = memory.clone().store(Arc::new(Store::open(directory.path().join("store")).unwrap()));
    let mut rows: Vec<Value> = Vec::new();
    let mut row = |name: &str, value: f64, unit: &str, promise: Option<(&str, &str, f64)>| {
        let mut row = json!({ "name": name, "value": (value * 1000.0).round() / 1000.0, "unit": unit });
        if let Some((words, kind, bound)) = promise {
            row["promise"] = words.into();
            row[kind] = bound.into();
        }
        if !is_json {
            println!("{name:44} {value:10.3} {unit}");
        }
        rows.push(row);
    };
    let least = |words| Some((words, "promise_max", 3.0));
    for count in [1_000, 10_000, 100_000] {
        let plan = Arc::new(steps(count, |_| Vec::new()));
        let value = cost(&runtime, &memory, &plan, count, Durability::None);
        let promise = if count == 100_000 { least("at most 3 µs a step") } else { None };
        row(&format!("wide, {count} steps, in memory"), value, "µs/step", promise);
    }
    for count in [100_000, 1_000_000] {
        let plan = Arc::new(map());
        let value = cost(&runtime, &memory, &plan, count, Durability::None);
        row(&format!("map over {count} items, in memory"), value, "µs/item", None);
    }
    let layered = Arc::new(steps(10_000, |number| {
        if number < 10 {
            Vec::new()
        } else {
            vec![number / 10 * 10 - 10 + number % 10, number / 10 * 10 - 10 + (number + 1) % 10]
        }
    }));
    let value = cost(&runtime, &memory, &layered, 10_000, Durability::None);
    row(
        "layered, 10000 steps, in memory",
        value,
        "µs/step",
        Some(("at most 2 µs a step", "promise_max", 2.0)),
    );
    let chain = Arc::new(steps(10_000, |number| number.checked_sub(1).into_iter().collect()));
    let value = cost(&runtime, &memory, &chain, 10_000, Durability::None);
    row("chain, 10000 steps, in memory", value, "µs/step", None);
    let wide = Arc::new(steps(10_000, |_| Vec::new()));
    for (name, durability, bound) in [("full", Durability::Full, 20.0), ("normal", Durability::Normal, 20.0)]
    {
        let value = cost(&runtime, &stored, &wide, 10_000, durability);
        let promise = Some(("at most 20 µs a step", "promise_max", bound));
        row(&format!("wide, 10000 steps, durability {name}"), value, "µs/step", promise);
    }
    let link = Arc::new(steps(500, |number| number.checked_sub(1).into_iter().collect()));
    let value = cost(&runtime, &stored, &link, 500, Durability::Full);
    let raw = raw_commit(&runtime, &directory.path().join("raw"));
    row("chain, 500 steps, durability full", value, "µs/step", None);
    row("one commit of one document", raw, "µs", None);
    row("a durable link over a commit", value / raw, "×", Some(("at most 1.3 ×", "promise_max", 1.3)));
    let program = if Path::new(PEERS).exists() { PEERS } else { "python3" };
    let own = cost(&runtime, &memory, &wide, 10_000, Durability::None);
    if let [ten, hundred, chain] = python(program, PYTHON)[..] {
        row("asyncio, 10000 tasks in a group", ten, "µs/task", None);
        row("asyncio, 100000 tasks in a group", hundred, "µs/task", None);
        row("asyncio, chain of 10000 tasks", chain, "µs/task", None);
        row("asyncio over ours, 10000 wide", ten / own, "×", None);
    }
    if let [fan] = python(program, LANGGRAPH)[..] {
        row("LangGraph, 1000 sends", fan, "µs/task", None);
        row("LangGraph over ours, wide", fan / own, "×", None);
    }
    if is_json {
        println!("{}", json!({ "rows": rows }));
    }
}
