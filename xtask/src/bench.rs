//! The promises with numbers, measured: bench programs print rows as JSON, results are stored by date and commit.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::Result;
use crate::command::Task;
use crate::suite;
use crate::suite::setup::{self, Install, Need, environment, finds, npm};

/// A bench program: an example of a crate that prints one JSON object
/// `{"rows": [{"name", "value", "unit", "promise"?, "promise_max"?, "promise_min"?}]}`.
#[derive(Debug)]
pub struct Bench {
    /// The package.
    pub package: &'static str,
    /// The package's directory.
    pub directory: &'static str,
    /// The example's name.
    pub example: &'static str,
    /// The package and the name of a program that it starts, which is built first.
    pub starts: Option<(&'static str, &'static str)>,
    /// The Python script that stands in for the example: it measures the Python package.
    pub script: Option<&'static str>,
    /// The peers. The rows of a peer that cannot be installed are omitted.
    pub peers: &'static [Need],
}

impl Bench {
    /// The package and the example, with a slash between them.
    pub fn name(&self) -> String {
        format!("{}/{}", self.package, self.example)
    }
}

/// The bench programs whose names have one of these words; all for no word. An error if there are none.
pub fn named(words: &[String]) -> Result<Vec<&'static Bench>> {
    let has_word = |bench: &Bench| words.iter().any(|word| bench.name().contains(word.as_str()));
    let found: Vec<&Bench> = BENCHES.iter().filter(|bench| words.is_empty() || has_word(bench)).collect();
    if found.is_empty() {
        let names: Vec<String> = BENCHES.iter().map(Bench::name).collect();
        return Err(format!(
            "no program has {} in its name; there are: {}",
            words.join(", "),
            names.join("; ")
        ));
    }
    Ok(found)
}

const fn bench(package: &'static str, directory: &'static str, example: &'static str) -> Bench {
    Bench { package, directory, example, starts: None, script: None, peers: &[] }
}

/// The bench programs.
pub const BENCHES: &[Bench] = &[
    Bench {
        starts: Some(("toolpost-cli", "toolpost")),
        peers: SANDBOX_PEERS,
        ..bench("toolpost-sandbox", "crates/sandbox", "spawn_cost")
    },
    bench("toolpost-sandbox", "crates/sandbox", "pool_cost"),
    bench("toolpost-sandbox", "crates/sandbox", "session_cost"),
    bench("toolpost-docker", "crates/docker", "docker_cost"),
    bench("toolpost-toolbox", "crates/toolbox", "call_cost"),
    bench("toolpost-gateway", "crates/gateway", "search_cost"),
    bench("toolpost-toolbox", "crates/toolbox", "state_cost"),
    bench("toolpost", "crates/toolpost", "program_cost"),
    bench("toolpost-store", "crates/store", "commit_cost"),
    bench("toolpost-exec", "crates/exec", "worker_cost"),
    bench("toolpost-exec", "crates/exec", "program_calls"),
    Bench { peers: SERVER_PEERS, ..bench("toolpost-mcp", "crates/mcp", "serve_cost") },
    bench("toolpost-agent", "crates/agent", "loop_cost"),
    Bench {
        starts: Some(("toolpost-cli", "toolpost")),
        peers: AGENT_PEERS,
        ..bench("toolpost-agent", "crates/agent", "loop_peers")
    },
    bench("toolpost-llm", "crates/llm", "fold_speed"),
    Bench { peers: FLOW_PEERS, ..bench("toolpost-flow", "crates/flow", "flow_cost") },
    Bench {
        script: Some("crates/python/benches/cost.py"),
        peers: PYTHON_PEERS,
        ..bench("toolpost-python", "crates/python", "cost")
    },
];

/// The peers of the Python package, in the environment where it is installed.
const PYTHON_PEERS: &[Need] = &[Need {
    name: "peers of the Python package",
    probe: finds!("python-bench", "pydantic_ai agents fastmcp"),
    install: environment!(
        "python-bench",
        "pydantic-ai-slim[openai]==2.62.0",
        "openai-agents==0.24.0",
        "fastmcp==4.1.2"
    ),
    reason: "the peers of the package",
    without: "the package is not measured",
}];

/// The peers of the sandbox.
const SANDBOX_PEERS: &[Need] = &[Need {
    name: "sandbox-runtime",
    probe: &["test", "-e", ".dev/peers/node_modules/.bin/srt"],
    install: npm!("peers", "@anthropic-ai/sandbox-runtime"),
    reason: "a peer of the sandbox",
    without: "its start is not measured",
}];

/// The peers of the server.
const SERVER_PEERS: &[Need] = &[Need {
    name: "mcp typescript 2",
    probe: &["test", "-d", ".dev/peers/node_modules/@modelcontextprotocol/server"],
    install: npm!("peers", "@modelcontextprotocol/server@2.4.0", "@modelcontextprotocol/node@2.1.2", "zod@4"),
    reason: "a peer of the server",
    without: "its calls are not measured",
}];

/// The peers of the agent loop.
const AGENT_PEERS: &[Need] = &[
    Need {
        name: "agents of Python",
        probe: finds!("agents-env", "pydantic_ai anthropic agents"),
        install: environment!(
            "agents-env",
            "pydantic-ai-slim[anthropic,openai]==2.62.0",
            "openai-agents==0.24.0"
        ),
        reason: "peers of the agent loop",
        without: "their iterations are not measured",
    },
    Need {
        name: "llm_factory_toolkit with its providers",
        probe: finds!("toolkit-env", "llm_factory_toolkit openai"),
        install: environment!("toolkit-env", "llm_factory_toolkit==2.1.0", "openai"),
        reason: "a peer of the agent loop",
        without: "its iterations are not measured",
    },
    Need {
        name: "AI SDK",
        probe: &["test", "-d", ".dev/peers/node_modules/@ai-sdk/anthropic"],
        install: npm!("peers", "ai@6.0.326", "@ai-sdk/openai@3.0.141", "@ai-sdk/anthropic", "zod@4"),
        reason: "a peer of the agent loop",
        without: "its iterations are not measured",
    },
];

/// The peers of the flows.
const FLOW_PEERS: &[Need] = &[
    Need {
        name: "LangGraph",
        probe: finds!("flow-env", "langgraph"),
        install: environment!("flow-env", "langgraph==1.2.22"),
        reason: "a peer of flows",
        without: "its tasks are not measured",
    },
    Need {
        name: "Dask",
        probe: finds!("flow-env", "dask"),
        install: environment!("flow-env", "dask==2026.8.0"),
        reason: "a peer of flows",
        without: "its tasks are not measured",
    },
    Need {
        name: "Prefect",
        probe: finds!("prefect-env", "prefect"),
        // It does not start with a newer FastAPI.
        install: environment!("prefect-env", "prefect==3.8.8", "fastapi==0.139.*"),
        reason: "a peer of flows",
        without: "its tasks are not measured",
    },
];

/// The time that one program may take to be built, and to measure.
const LIMIT: Duration = Duration::from_mins(40);

/// A figure that was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The measured values.
    pub name: String,
    /// The figure.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// The promise in words.
    pub promise: Option<String>,
    /// The most that is promised.
    pub most: Option<f64>,
    /// The least that is promised.
    pub least: Option<f64>,
}

impl Row {
    /// Whether the promise holds; nothing where none is made.
    pub fn holds(&self) -> Option<bool> {
        (self.most.is_some() || self.least.is_some()).then(|| {
            self.most.is_none_or(|most| self.value <= most)
                && self.least.is_none_or(|least| self.value >= least)
        })
    }

    fn promised(&self) -> String {
        match (&self.promise, self.most, self.least) {
            (Some(words), _, _) => words.clone(),
            (None, Some(most), Some(least)) => format!("{least} to {most} {}", self.unit),
            (None, Some(most), None) => format!("at most {most} {}", self.unit),
            (None, None, Some(least)) => format!("at least {least} {}", self.unit),
            (None, None, None) => "none".to_owned(),
        }
    }
}

/// Reads what a bench program printed: the last line, or the whole, that is a JSON object with `rows`.
pub fn rows(text: &str) -> Result<Vec<Row>> {
    let object = std::iter::once(text)
        .chain(text.lines().rev())
        .filter_map(|part| serde_json::from_str::<Value>(part.trim()).ok())
        .find(|value| value["rows"].is_array())
        .ok_or("printed no JSON object with `rows`")?;
    let rows = object["rows"].as_array().map(Vec::as_slice).unwrap_or_default();
    if rows.is_empty() {
        return Err("measured nothing: `rows` is empty".to_owned());
    }
    rows.iter()
        .map(|row| {
            let text = |field: &str| row[field].as_str().map(str::to_owned);
            let missing = |field: &str| format!("a row without `{field}`: {row}");
            Ok(Row {
                name: text("name").ok_or_else(|| missing("name"))?,
                value: row["value"].as_f64().ok_or_else(|| missing("value"))?,
                unit: text("unit").ok_or_else(|| missing("unit"))?,
                promise: text("promise"),
                most: row["promise_max"].as_f64(),
                least: row["promise_min"].as_f64(),
            })
        })
        .collect()
}

/// Runs the bench programs, or those whose names have one of these words, in the bench profile, writes
/// `benches/results/DATE-COMMIT.json`, and prints a table.
///
/// Sets up the needs of the tests for a run of all; some are measured with the installed part. The answer is whether
/// every such program ran and every promise holds.
pub fn run(root: &Path, words: &[String]) -> Result<bool> {
    let benches = named(words)?;
    setup::provide(root, setup::TOOLCHAIN);
    if words.is_empty() {
        setup::provide(root, setup::NEEDS);
    }
    for bench in &benches {
        setup::provide(root, bench.peers);
    }
    let mut programs = Vec::new();
    let mut missing = Vec::new();
    let mut table = Vec::new();
    for bench in benches {
        let name = bench.name();
        let file = root.join(bench.directory).join("examples").join(format!("{}.rs", bench.example));
        let directory = root.join(bench.directory).join("examples").join(bench.example);
        let measured = if bench.script.is_some() || file.exists() || directory.exists() {
            eprintln!("measuring {name}");
            measure(root, bench)
        } else {
            Err(format!("there is no {}/examples/{}.rs", bench.directory, bench.example))
        };
        match measured {
            Ok((rows, printed)) => {
                programs.push(json!({ "program": name, "result": printed }));
                table.extend(rows);
            }
            Err(error) => missing.push((name, error)),
        }
    }
    let date = date(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400));
    let commit = commit(root);
    let result = json!({
        "v": 1,
        "date": date,
        "commit": commit,
        "machine": machine(root),
        "programs": programs,
        "missing": missing.iter().map(|(name, error)| json!({ "program": name, "reason": error })).collect::<Vec<_>>(),
    });
    let directory = root.join("benches/results");
    fs::create_dir_all(&directory)
        .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
    let short: String = commit.chars().take(8).collect();
    let file = directory.join(format!("{date}-{short}.json"));
    fs::write(&file, format!("{result:#}\n"))
        .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    print!("{}", render(&table));
    for (name, error) in &missing {
        println!("MISSING {name}: {error}");
    }
    println!("written to benches/results/{date}-{short}.json");
    Ok(missing.is_empty() && table.iter().all(|row| row.holds() != Some(false)))
}

fn measure(root: &Path, bench: &Bench) -> Result<(Vec<Row>, Value)> {
    if let Some((package, program)) = bench.starts {
        let task = Task::new("cargo", &["build", "--quiet", "--release", "--package", package])
            .argument("--bin")
            .argument(program)
            .directory(root)
            .limit(LIMIT);
        let captured = task.capture()?;
        if !captured.success {
            return Err(format!("`{}` failed: {}", task.line(), captured.errors.trim()));
        }
    }
    let task = match bench.script {
        Some(script) => {
            let python = root.join(".dev/python-bench/bin/python3").display().to_string();
            suite::python::install_optimized(root, &python)?;
            Task::new(&python, &[script])
        }
        None => Task::new("cargo", &["run", "--quiet", "--profile", "bench", "--package", bench.package])
            .argument("--example")
            .argument(bench.example)
            .argument("--")
            .argument("--json"),
    };
    let task = task.directory(root).limit(LIMIT);
    let captured = task.capture()?;
    if !captured.success {
        return Err(format!("`{}` failed: {}", task.line(), captured.errors.trim()));
    }
    let rows = rows(&captured.text).map_err(|error| format!("`{}` {error}", task.line()))?;
    let printed = rows
        .iter()
        .map(|row| {
            json!({
                "name": row.name, "value": row.value, "unit": row.unit,
                "promise": row.promised(), "holds": row.holds(),
            })
        })
        .collect();
    Ok((rows, Value::Array(printed)))
}

fn commit(root: &Path) -> String {
    Task::new("git", &["rev-parse", "HEAD"])
        .directory(root)
        .capture()
        .ok()
        .filter(|captured| captured.success)
        .map_or_else(|| "uncommitted".to_owned(), |captured| captured.text.trim().to_owned())
}

fn machine(root: &Path) -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| -> Option<String> {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let kernel = Task::new("uname", &["-srm"]).directory(root).capture().ok();
    json!({
        "processor": field(&read("/proc/cpuinfo"), "model name"),
        "cores": std::thread::available_parallelism().map(std::num::NonZero::get).ok(),
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": kernel.map(|captured| captured.text.trim().to_owned()),
    })
}

/// The date, `YYYY-MM-DD`, of a day counted from 1970-01-01, by the rules of the Gregorian calendar.
pub fn date(day: u64) -> String {
    let mut year = 1970;
    let mut rest = day;
    let leap = |year: u64| (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    while rest >= 365 + u64::from(leap(year)) {
        rest -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", rest + 1)
}

/// The table of promises and what was measured.
pub fn render(rows: &[Row]) -> String {
    let mut cells = vec![["what", "measured", "promised", "holds"].map(str::to_owned)];
    for row in rows {
        let holds = row.holds().map_or("-", |holds| if holds { "yes" } else { "NO" });
        cells.push([
            row.name.clone(),
            format!("{} {}", row.value, row.unit),
            row.promised(),
            holds.to_owned(),
        ]);
    }
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let (first, second, third) = (width(0), width(1), width(2));
    let line = |row: &[String; 4]| {
        format!("{:first$}  {:>second$}  {:third$}  {}\n", row[0], row[1], row[2], row[3])
    };
    cells.iter().map(line).collect()
}
