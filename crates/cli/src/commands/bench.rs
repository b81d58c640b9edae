//! `toolpost bench`: Toolpost beside its peers on this machine.
//!
//! Every subject runs once in each round, and rounds repeat over the whole run, so that noise reaches all. Subjects
//! of Toolpost and peers do the same work: the same tool, the same provider or the same client.

mod chart;
mod figures;
mod mcp;
mod process;
mod provider;
mod report;
mod sandbox;
pub(crate) mod subjects;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use toolpost_core::{Clock as _, SystemClock};
use toolpost_sandbox::Cancel;

use self::figures::{Comparison, Figure, Machine, Results, Row, Status, Version};
use self::process::{Process, Watch, words};
use crate::args::{BENCH_SUBJECT, BenchArgs, Suite};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;
use crate::runtime;

/// Rounds without `--rounds`.
const DEFAULT_ROUNDS: usize = 10;
/// Without `--rounds`, no round starts that would end later.
const MAX_TIME: Duration = Duration::from_secs(270);
/// The rounds that run even if they take longer.
const MIN_ROUNDS: usize = 2;

const LOOP: &str = include_str!("bench/peers/loop.py");
const SERVER: &str = include_str!("bench/peers/server.py");
const FLOW: &str = include_str!("bench/peers/flow.py");
/// Prints the interpreter and the versions of packages.
const PROBE: &str = "import json, sys, platform
from importlib.metadata import version
found = {'': sys.executable, 'Python': platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except Exception:
        pass
print(json.dumps(found))";

/// Names of metrics with the values of one round.
type Figures = Vec<(&'static str, f64)>;
type Measure = Box<dyn FnMut(&Watch) -> Result<Figures, String>>;

/// A measured program or library.
struct Subject {
    name: String,
    toolpost: bool,
    /// The reason why the subject is skipped.
    missing: Option<String>,
    /// The installation of the subject.
    fix: Option<String>,
    version_of: Option<Vec<OsString>>,
    measure: Measure,
    values: BTreeMap<&'static str, Vec<f64>>,
    failure: Option<String>,
}

impl Subject {
    fn new(
        name: impl Into<String>,
        measure: impl FnMut(&Watch) -> Result<Figures, String> + 'static,
    ) -> Self {
        let name = name.into();
        let measure = Box::new(measure);
        let values = BTreeMap::new();
        Self {
            name,
            toolpost: false,
            missing: None,
            fix: None,
            version_of: None,
            measure,
            values,
            failure: None,
        }
    }

    fn toolpost(mut self) -> Self {
        self.toolpost = true;
        self
    }

    fn missing(mut self, missing: Option<String>) -> Self {
        self.missing = missing;
        self
    }

    fn fix(mut self, fix: &str) -> Self {
        self.fix = Some(fix.to_owned()).filter(|fix| !fix.is_empty());
        self
    }

    /// A subject that needs a package of Python; an empty name means Python alone.
    fn needs(self, python: &Python, package: &str) -> Self {
        let (missing, fix) = python.missing(package);
        self.missing(missing).fix(&fix)
    }

    /// The command that prints the version.
    fn version_of(mut self, line: &[&str]) -> Self {
        self.version_of = Some(words(line));
        self
    }

    /// Measures one round. A failed subject stays failed.
    fn round(&mut self, watch: &Watch) {
        if self.missing.is_some() || self.failure.is_some() {
            return;
        }
        match (self.measure)(watch) {
            Ok(figures) => {
                for (metric, value) in figures {
                    self.values.entry(metric).or_default().push(value);
                }
            }
            Err(reason) => self.failure = Some(reason),
        }
    }

    /// The row of a metric; none if the subject does not have the metric.
    fn row(&self, metric: &'static str, baseline: Option<&[f64]>, higher_is_better: bool) -> Option<Row> {
        let rounds = self.values.get(metric).map_or(&[][..], Vec::as_slice);
        let (status, reason) = match (&self.failure, &self.missing) {
            (_, Some(missing)) => (Status::Skipped, Some(missing.clone())),
            (Some(failure), None) => (Status::Failed, Some(failure.clone())),
            (None, None) if rounds.is_empty() => return None,
            (None, None) => (Status::Measured, None),
        };
        let fix = self.fix.clone().filter(|_| reason.is_some());
        // The rounds of a failed subject may differ in number.
        let figure = Figure::from_rounds(rounds).filter(|_| status == Status::Measured);
        let ratios: Vec<f64> = baseline
            .unwrap_or_default()
            .iter()
            .zip(rounds)
            .map(|(own, value)| if higher_is_better { own / value } else { value / own })
            .collect();
        Some(Row {
            name: self.name.clone(),
            toolpost: self.toolpost,
            status,
            rounds: rounds.len(),
            ratio: figure.and_then(|_| Figure::from_rounds(&ratios)),
            figure,
            reason,
            fix,
        })
    }
}

/// A measurement: ID, title, description, unit, and whether higher is better.
struct Metric(&'static str, &'static str, &'static str, &'static str, bool);

const SANDBOX_METRICS: &[Metric] = &[
    Metric(
        "sandbox-true",
        "Start a program in a sandbox",
        "The time from the start of `true` to its end.",
        "ms",
        false,
    ),
    Metric(
        "sandbox-python",
        "Run Python in a sandbox",
        "The time from the start of `print(1)` to its end. All subjects run the system's Python.",
        "ms",
        false,
    ),
];
const LOOP_METRICS: &[Metric] = &[
    Metric(
        "loop-cpu",
        "Agent loop: processor time",
        "The processor time of one iteration: a request over HTTP, the answer, a tool call. \
         20 agents run at once against the same loopback provider.",
        "ms",
        false,
    ),
    Metric(
        "loop-rate",
        "Agent loop: throughput",
        "Iterations of 20 agents that run at once.",
        "iterations/s",
        true,
    ),
    Metric(
        "loop-start",
        "Agent loop: start",
        "The time from the start of the process to the answer after ten tool calls.",
        "ms",
        false,
    ),
    Metric("loop-memory", "Agent loop: memory", "The peak resident memory of the process.", "MiB", false),
];
const MCP_METRICS: &[Metric] = &[
    Metric(
        "mcp-stdio",
        "MCP server: calls over stdio",
        "One client with 16 calls in flight.",
        "calls/s",
        true,
    ),
    Metric(
        "mcp-http",
        "MCP server: calls over HTTP",
        "16 clients, each with a session and a connection.",
        "calls/s",
        true,
    ),
    Metric(
        "mcp-cpu",
        "MCP server: processor time",
        "The processor time of the server for one call over stdio.",
        "µs",
        false,
    ),
    Metric(
        "mcp-start",
        "MCP server: start",
        "The time from the start of the process to the result of its first call over stdio.",
        "ms",
        false,
    ),
];
const FLOW_METRICS: &[Metric] = &[
    Metric(
        "flow-wide",
        "Workflow: independent steps",
        "The time of one of 1,000 steps without dependencies.",
        "µs",
        false,
    ),
    Metric(
        "flow-chain",
        "Workflow: a chain",
        "The time of one of 100 steps, each of which needs the step before.",
        "µs",
        false,
    ),
];

/// The Python with the peers.
struct Python {
    /// The name that the user gave.
    name: String,
    /// The interpreter itself, without a launcher.
    program: PathBuf,
    versions: BTreeMap<String, String>,
    failure: Option<String>,
}

/// The packages of peers: distribution, and the name in `pip install`.
const PACKAGES: [(&str, &str); 5] = [
    ("pydantic-ai-slim", "pydantic-ai-slim[openai]"),
    ("openai-agents", "openai-agents"),
    ("fastmcp", "fastmcp"),
    ("langgraph", "langgraph"),
    ("toolpost", "toolpost"),
];

impl Python {
    fn probe(program: &Path, watch: &Watch) -> Self {
        let name = program.display().to_string();
        let mut line = vec![program.into(), "-c".into(), PROBE.into()];
        line.extend(PACKAGES.iter().map(|(name, _)| OsString::from(*name)));
        let output = watch.output(&line);
        let parsed = output.and_then(|text| {
            serde_json::from_str::<BTreeMap<String, String>>(&text).map_err(|error| error.to_string())
        });
        match parsed {
            Ok(mut versions) => {
                let program = versions.remove("").map_or_else(|| program.to_owned(), PathBuf::from);
                Self { name, program, versions, failure: None }
            }
            Err(failure) => {
                Self { name, program: program.to_owned(), versions: BTreeMap::new(), failure: Some(failure) }
            }
        }
    }

    /// The reason why a package is missing, and how to install it. An empty name means Python itself.
    fn missing(&self, package: &str) -> (Option<String>, String) {
        let program = &self.name;
        if let Some(failure) = &self.failure {
            let fix = "install Python 3, or name it with `--python`".to_owned();
            return (Some(format!("`{program}`: {failure}")), fix);
        }
        let Some((_, install)) = PACKAGES.iter().find(|(name, _)| *name == package) else {
            return (None, String::new());
        };
        let is_missing = !self.versions.contains_key(package);
        let missing = is_missing.then(|| format!("this Python has no `{package}`"));
        (missing, format!("`{program} -m pip install \"{install}\"`"))
    }
}

/// The command line of a script.
fn script_line(interpreter: &Path, script: &str, arguments: &[&str]) -> Vec<OsString> {
    let mut line = vec![interpreter.into(), "-c".into(), script.into()];
    line.extend(words(arguments));
    line
}

/// The command line of a subject of Toolpost.
fn own_line(own: &Path, name: &str, place: &str) -> Vec<OsString> {
    let mut line = vec![own.into()];
    line.extend(words(&[BENCH_SUBJECT, name]));
    line.extend((!place.is_empty()).then(|| place.into()));
    line
}

/// Runs a subject of the loop: `ready`, then figures as JSON.
fn run_loop(watch: &Watch, line: &[OsString]) -> Result<Figures, String> {
    let mut process = Process::start(watch, line)?;
    let mut text = String::new();
    while text.trim() != subjects::READY {
        process.line(&mut text)?;
    }
    let mut figures = vec![("loop-start", process.age().as_secs_f64() * 1e3)];
    process.line(&mut text)?;
    figures.extend(parse(&text, &[("loop-cpu", "cpu"), ("loop-rate", "rate"), ("loop-memory", "memory")])?);
    Ok(figures)
}

/// The figures in a JSON object. A null is an unknown figure.
fn parse(text: &str, fields: &[(&'static str, &str)]) -> Result<Figures, String> {
    let value: Value = serde_json::from_str(text)
        .map_err(|_| format!("unexpected output: {}", crate::style::one_line(text, 100)))?;
    let figure = |(metric, field): &(&'static str, &str)| match &value[*field] {
        Value::Null => None,
        found => Some(
            found
                .as_f64()
                .filter(|number| *number > 0.0)
                .map(|number| (*metric, number))
                .ok_or_else(|| format!("unexpected figure `{field}`: {found}")),
        ),
    };
    fields.iter().filter_map(figure).collect()
}

fn run_flow(watch: &Watch, line: &[OsString]) -> Result<Figures, String> {
    parse(&watch.output(line)?, &[("flow-wide", "wide"), ("flow-chain", "chain")])
}

/// A server over stdio and, if it can, over HTTP.
fn run_server(
    watch: &Watch,
    has_http: bool,
    line: &dyn Fn(&str) -> Vec<OsString>,
) -> Result<Figures, String> {
    let mut figures = mcp::stdio(watch, &line("stdio"))?;
    if has_http {
        figures.extend(mcp::http(watch, line)?);
    }
    Ok(figures)
}

/// The metrics and subjects of a suite.
fn suite(suite: Suite, own: &Path, python: &Python, provider: &str) -> (&'static [Metric], Vec<Subject>) {
    let peer = |script: &'static str, function: &str, arguments: &[String]| {
        let mut all = vec![function.to_owned()];
        all.extend_from_slice(arguments);
        script_line(&python.program, script, &all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let program = own.to_owned();
    match suite {
        Suite::Sandbox => (SANDBOX_METRICS, sandbox::subjects(own)),
        Suite::Loop => {
            let line = own_line(own, "loop", provider);
            let arguments = [
                provider.to_owned(),
                subjects::AGENTS.to_string(),
                subjects::LOOP_TIME.as_secs_f64().to_string(),
            ];
            let subject = |name: &str, package: &str, function: &str| {
                let line = peer(LOOP, function, &arguments);
                Subject::new(name, move |watch| run_loop(watch, &line)).needs(python, package)
            };
            let subjects = vec![
                Subject::new("Toolpost", move |watch| run_loop(watch, &line)).toolpost(),
                subject("Toolpost, Python package", "toolpost", "toolpost").toolpost(),
                subject("pydantic-ai", "pydantic-ai-slim", "pydantic_ai"),
                subject("openai-agents", "openai-agents", "openai_agents"),
            ];
            (LOOP_METRICS, subjects)
        }
        Suite::Mcp => {
            let subject = |name: &str, package: &str, function: &'static str, has_http: bool| {
                let interpreter = python.program.clone();
                let line = move |place: &str| script_line(&interpreter, SERVER, &[function, place]);
                Subject::new(name, move |watch| run_server(watch, has_http, &line)).needs(python, package)
            };
            let subjects = vec![
                Subject::new("Toolpost", move |watch| {
                    run_server(watch, true, &|place| own_line(&program, "server", place))
                })
                .toolpost(),
                subject("Toolpost, Python package", "toolpost", "toolpost", true).toolpost(),
                subject("FastMCP", "fastmcp", "fastmcp", true),
                subject("Python loop without checks", "", "lines", false),
            ];
            (MCP_METRICS, subjects)
        }
        Suite::Flow => {
            let line = own_line(own, "flow", "");
            let arguments = [
                subjects::WIDE.to_string(),
                subjects::CHAIN.to_string(),
                subjects::FLOW_TIME.as_secs_f64().to_string(),
            ];
            let subject = |name: &str, package: &str, function: &str| {
                let line = peer(FLOW, function, &arguments);
                Subject::new(name, move |watch| run_flow(watch, &line)).needs(python, package)
            };
            let subjects = vec![
                Subject::new("Toolpost", move |watch| run_flow(watch, &line)).toolpost(),
                subject("LangGraph", "langgraph", "langgraph"),
                subject("asyncio tasks without a graph", "", "tasks"),
            ];
            (FLOW_METRICS, subjects)
        }
    }
}

/// The comparison of a metric.
fn compare(metric: &Metric, subjects: &[Subject]) -> Comparison {
    let Metric(id, title, about, unit, higher_is_better) = *metric;
    let is_baseline =
        |subject: &&Subject| subject.toolpost && subject.failure.is_none() && subject.values.contains_key(id);
    let own = subjects.iter().find(is_baseline);
    let baseline = own.map(|own| own.values[id].as_slice());
    let rows = subjects.iter().filter_map(|subject| {
        let is_own = own.is_some_and(|own| std::ptr::eq(own, subject));
        subject.row(id, baseline.filter(|_| !is_own), higher_is_better)
    });
    let rows = rows.collect();
    let [id, title, about, unit] = [id, title, about, unit].map(str::to_owned);
    Comparison { id, title, about, unit, higher_is_better, rows }
}

fn machine() -> Machine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let system = rustix::system::uname();
    let [name, release, machine] = [system.sysname(), system.release(), system.machine()]
        .map(|text| text.to_string_lossy().into_owned());
    let (level, layers) =
        sandbox::layers().map_or((None, Vec::new()), |(level, layers)| (Some(level), layers));
    Machine {
        processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| machine.clone()),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_bytes: field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|text| text.split(' ').next()?.parse::<u64>().ok())
            .map(|kibibytes| kibibytes * 1024),
        system: format!("{name} {release} {machine}"),
        level: level.map(|level| level.to_string()),
        layers,
    }
}

pub(crate) fn run(args: &BenchArgs, printer: &Printer) -> Result<Exit, Failure> {
    let old = args.compare.as_deref().map(read).transpose()?;
    let results = runtime::cancellable(|cancel| measure(args, printer, cancel))??;
    report::write(&args.output, &results, old.as_ref())?;
    if !printer.is_text() {
        printer.json(&results)?;
        return Ok(Exit::Ok);
    }
    let mut text = String::new();
    for comparison in &results.comparisons {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}\n{}", comparison.title, report::table(comparison));
    }
    if let Some(old) = &old {
        text.push_str(&report::differences(&results, old));
    }
    printer.result(&text)?;
    printer.note(&format!("wrote {}", args.output.join("report.md").display()));
    Ok(Exit::Ok)
}

/// Reads the results of an earlier run.
fn read(path: &Path) -> Result<Results, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file("the results", path, &error))?;
    serde_json::from_str(&text).map_err(|error| {
        Failure::usage(format!("`{}` has no results of a benchmark: {error}", path.display()))
            .hint("Name the `results.json` of an earlier run.")
    })
}

fn check(cancel: &Cancel) -> Result<(), Failure> {
    if cancel.is_cancelled() {
        return Err(Failure::new(Exit::Interrupted, "CANCELLED", "the benchmark was cancelled"));
    }
    Ok(())
}

fn measure(args: &BenchArgs, printer: &Printer, cancel: &Cancel) -> Result<Results, Failure> {
    let started = SystemClock.timestamp().to_string();
    let begun = Instant::now();
    let own = std::env::current_exe().map_err(|error| Failure::of_machine("this program", &error))?;
    let provider = provider::start().map_err(|error| Failure::of_machine("the loopback provider", &error))?;
    let watch = Watch::new(cancel);
    let python = Python::probe(&args.python, &watch);
    check(cancel)?;
    let all = [Suite::Sandbox, Suite::Loop, Suite::Mcp, Suite::Flow];
    let wanted = all.into_iter().filter(|suite| args.suites.is_empty() || args.suites.contains(suite));
    let mut suites: Vec<_> = wanted.map(|name| suite(name, &own, &python, &provider)).collect();
    let machine = machine();
    let max_rounds = args.rounds.map_or(DEFAULT_ROUNDS, usize::from);
    let (mut rounds, mut longest) = (0, Duration::ZERO);
    while rounds < max_rounds {
        let is_late = begun.elapsed() + longest > MAX_TIME;
        if args.rounds.is_none() && rounds >= MIN_ROUNDS && is_late {
            break;
        }
        let start = Instant::now();
        for (_, subjects) in &mut suites {
            // The order alternates, so that no subject always follows the same one.
            subjects.reverse();
            for subject in subjects.iter_mut() {
                subject.round(&watch);
                check(cancel)?;
            }
        }
        rounds += 1;
        longest = longest.max(start.elapsed());
        printer.note(&format!("round {rounds} of {max_rounds}, {} s", begun.elapsed().as_secs()));
    }
    let mut versions =
        vec![Version { name: "Toolpost".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }];
    versions.extend(
        python
            .versions
            .iter()
            .map(|(name, version)| Version { name: name.clone(), version: version.clone() }),
    );
    for (_, subjects) in &mut suites {
        if rounds % 2 == 1 {
            subjects.reverse();
        }
        for subject in subjects.iter().filter(|subject| subject.missing.is_none()) {
            let output = subject.version_of.as_ref().map(|line| watch.output(line));
            let line = output.and_then(|output| output.ok()?.lines().next().map(str::to_owned));
            versions.extend(line.map(|version| Version { name: subject.name.clone(), version }));
        }
    }
    let comparisons = suites
        .iter()
        .flat_map(|(metrics, subjects)| metrics.iter().map(|metric| compare(metric, subjects)))
        .collect();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Ok(Results {
        v: 1,
        version,
        started,
        seconds: begun.elapsed().as_secs(),
        rounds,
        machine,
        versions,
        comparisons,
    })
}
