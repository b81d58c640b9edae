//! The cost of a search of the catalog, with 500 and with 10,000 tools, beside `llm_factory_toolkit` where the set-up
//! of `cargo xtask test` has installed it.
//!
//! Prints the tenth percentile. `--json` prints one object for `cargo xtask bench`.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program for people and for the bench")]
#![expect(clippy::disallowed_methods, reason = "starts the library that it measures itself beside")]

use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};
use toolpost_core::{Output, ParameterType, ToolSpec, tool_fn};
use toolpost_gateway::catalog::{Catalog, Matching, Search};
use toolpost_toolbox::Toolbox;

// The same catalogs and queries as in tests/data/golden.py.
const NOUNS: [&str; 10] =
    ["invoice", "customer", "parcel", "ticket", "report", "meeting", "order", "account", "document", "task"];
const VERBS: [&str; 10] =
    ["create", "update", "delete", "find", "list", "send", "archive", "approve", "export", "count"];
const QUERIES: [(&str, &str); 3] =
    [("one word", "invoice"), ("three words", "approve customer order"), ("no match", "submarine")];
const SENTENCE: &str =
    "please find all the invoices of the customer in department 17 and export them as a report";

const SAMPLES: usize = 400;

fn toolbox(size: usize) -> Toolbox {
    let toolbox = Toolbox::builder().build().unwrap();
    for number in 0..size {
        let (verb, noun) = (VERBS[number % 10], NOUNS[number / 10 % 10]);
        let description =
            format!("{verb} the {noun} of department {}, with its history and notes.", number / 100);
        let mut spec = ToolSpec::new(format!("{verb}_{noun}_{number}"), description)
            .parameter("id", ParameterType::String, "The id.")
            .parameter("note", ParameterType::String, "The note.");
        spec.category = Some(noun.to_owned());
        spec.group = Some(format!("office.{noun}"));
        spec.tags = vec![verb.to_owned(), noun.to_owned()];
        toolbox.add(tool_fn(spec, async |_, _| Ok(Output::default()))).unwrap();
    }
    toolbox
}

/// The tenth percentile of the time of one round, in microseconds.
fn p10(mut round: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..SAMPLES)
        .map(|_| {
            let start = Instant::now();
            round();
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[SAMPLES / 10]
}

/// The cost of `llm_factory_toolkit` for the same work, if it is installed.
fn peer() -> Option<Value> {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = crate_directory.join("../../.dev/llm_factory_toolkit/venv/bin/python");
    if !python.exists() {
        return None;
    }
    let output = Command::new(python)
        .arg(crate_directory.join("tests/data/golden.py"))
        .arg("--bench")
        .output()
        .ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

fn main() {
    let peer = peer();
    let mut rows: Vec<Value> = Vec::new();
    let mut add = |name: String, key: &str, value: f64, most: Option<f64>| {
        let mut row = json!({ "name": name, "value": value, "unit": "µs" });
        if let Some(most) = most {
            row["promise"] = format!("≤ {} ms", most / 1000.0).into();
            row["promise_max"] = most.into();
        }
        rows.push(row);
        if let Some(theirs) = peer.as_ref().and_then(|peer| peer[key].as_f64()) {
            let name = format!("{name}: times faster than llm_factory_toolkit");
            rows.push(json!({ "name": name, "value": theirs / value, "unit": "×" }));
        }
    };
    for size in [500, 10_000] {
        let toolbox = toolbox(size);
        let start = Instant::now();
        let catalog = Catalog::new(&toolbox);
        assert_eq!(catalog.len(), size);
        add(
            format!("index of {size} tools"),
            &format!("{size} build"),
            start.elapsed().as_secs_f64() * 1e6,
            None,
        );
        for (what, query) in QUERIES {
            let search = Search::new(query);
            let time = p10(|| {
                black_box(catalog.search(black_box(&search)));
            });
            add(format!("search of {size} tools, {what}"), &format!("{size} {what}"), time, Some(1000.0));
        }
        let sentence = Search::new(SENTENCE).matching(Matching::Any);
        let time = p10(|| {
            black_box(catalog.search(black_box(&sentence)));
        });
        add(format!("search of {size} tools, a sentence, any word"), "", time, Some(1000.0));
    }
    let rows = json!({ "rows": rows });
    if std::env::args().any(|argument| argument == "--json") {
        println!("{rows}");
        return;
    }
    if peer.is_none() {
        println!("without llm_factory_toolkit: `cargo xtask test` installs it");
    }
    for row in rows["rows"].as_array().into_iter().flatten() {
        println!(
            "{:>10.1} {}  {}",
            row["value"].as_f64().unwrap(),
            row["unit"].as_str().unwrap(),
            row["name"].as_str().unwrap()
        );
    }
}
