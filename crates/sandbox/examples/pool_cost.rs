//! The cost of a run in a pool: `cargo run --release -p toolpost-sandbox --example pool_cost -- [--json] [SEARCH_PATH]`.
//! Prints JSON: the rows of `cargo xtask bench`, or with everything that was counted. The search path is by default the
//! system's, after an environment with data packages in `.dev/data-env`.
//!
//! Times are from the request to the outcome, of requests one after another with a short pause in between, in which the
//! pool makes the next spare; `rate` is from as many threads as there are processors, without a pause.

#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost_sandbox::{Cancel, Language, Level, Limits, Pool, PoolBuilder, Program, Sandbox, Workspace};

const GROUP_BY: &str = "import pandas as pd\n\
    frame = pd.DataFrame({'key': ['a', 'b', 'c', 'd'] * 250, 'value': range(1000)})\n\
    print(frame.groupby('key').value.sum().to_dict())";

fn sandbox() -> Sandbox {
    let sandbox =
        Sandbox::new().level(Level::Strict).limits(Limits::default().with_wall(Duration::from_secs(30)));
    let own = std::env::args().skip(1).find(|argument| argument != "--json");
    let environment = std::path::Path::new(".dev/data-env/bin").canonicalize();
    match (own, environment) {
        (Some(path), _) => sandbox.search_path(path),
        (None, Ok(path)) => {
            sandbox.search_path(format!("{}:{}", path.display(), toolpost_sandbox::SYSTEM_SEARCH_PATH))
        }
        (None, Err(_)) => sandbox,
    }
}

/// The rows of a result, with what is promised.
fn rows(result: &Value) -> Vec<Value> {
    let name = result["name"].as_str().unwrap_or_default();
    if let Some(rate) = result["per_second"].as_f64() {
        return vec![
            json!({ "name": name, "value": rate, "unit": "runs/s", "promise": "≥ 300/s", "promise_min": 300 }),
        ];
    }
    let row = |part: &str| {
        let value = result["ms"][part].as_f64()?;
        Some(json!({ "name": format!("{name}, {part}"), "value": value, "unit": "ms" }))
    };
    ["p10", "p50"].into_iter().filter_map(row).collect()
}

/// The promise of a pool depends on the machine, so that it is a ratio to a bare fork in the same run.
fn ratio(results: &[Value], pool: &str, bare: &str) -> Option<Value> {
    let p50 = |name: &str| {
        results.iter().find(|result| result["name"] == name).and_then(|result| result["ms"]["p50"].as_f64())
    };
    let value = p50(pool)? / p50(bare)?;
    Some(json!({ "name": format!("{pool}, over a bare fork, p50"), "value": value, "unit": "×",
        "promise": "≤ 1.5 ×", "promise_max": 1.5 }))
}

/// A warm interpreter without any sandbox that forks a child for each request, which runs the code, and reads what it
/// prints to its end.
const FORKS: &str = "import os, sys\nexec(sys.argv[1])\nfor line in sys.stdin:\n    r, w = os.pipe()\n    pid = os.fork()\n    \
    if pid == 0:\n        os.dup2(w, 1)\n        exec(sys.argv[2])\n        sys.stdout.flush()\n        os._exit(0)\n    \
    os.close(w)\n    while os.read(r, 65536): pass\n    os.close(r)\n    os.waitpid(pid, 0)\n    print('.', flush=True)";

fn forked(name: &str, setup: &str, code: &str, samples: usize) -> Value {
    let python = std::path::Path::new(".dev/data-env/bin/python3");
    let python = if python.exists() { python } else { std::path::Path::new("/usr/bin/python3") };
    let times = (|| -> std::io::Result<Vec<Duration>> {
        #[expect(clippy::disallowed_methods, reason = "the process that the pool is compared with")]
        let mut child = Command::new(python)
            .args(["-c", FORKS, setup, code])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(mut requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(std::io::Error::other("no pipes"));
        };
        let mut answers = BufReader::new(answers).lines();
        let mut times = Vec::new();
        // The first one is made slowly.
        for _ in 0..=samples {
            // As long as the pool needs to have its spares again.
            std::thread::sleep(Duration::from_millis(5));
            let start = Instant::now();
            requests.write_all(b"go\n")?;
            answers.next().ok_or_else(|| std::io::Error::other("the interpreter has ended"))??;
            times.push(start.elapsed());
        }
        drop(requests);
        child.wait()?;
        Ok(times.split_off(1))
    })();
    match times {
        Ok(times) => quantiles(name, times),
        Err(error) => json!({ "name": name, "error": error.to_string() }),
    }
}

/// Waits until the pool has its spares, or says why it has none.
fn ready(pool: &Pool, spares: usize) -> Option<String> {
    let since = Instant::now();
    while since.elapsed() < Duration::from_mins(1) {
        let metrics = pool.metrics();
        if metrics.ready >= spares {
            return None;
        }
        if metrics.unavailable.is_some() {
            return metrics.unavailable;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Some("no spare was ready within 60 s".into())
}

fn serial(name: &str, builder: PoolBuilder, sandbox: &Sandbox, program: &Program, samples: usize) -> Value {
    let pool = match builder.idle_workers(2).build() {
        Ok(pool) => Arc::new(pool),
        Err(error) => return json!({ "name": name, "error": error.to_string() }),
    };
    let pooled = sandbox.clone().backend(pool.clone());
    let mut times = Vec::new();
    for _ in 0..samples {
        if let Some(reason) = ready(&pool, 2) {
            return json!({ "name": name, "error": reason });
        }
        let start = Instant::now();
        let outcome = pooled.run(program, &Cancel::new(), &mut |_| {});
        let time = start.elapsed();
        match outcome {
            Ok(outcome) if outcome.verdict.is_ok() && outcome.report.backend == "pool" => times.push(time),
            Ok(outcome) => {
                return json!({ "name": name, "error": format!("{:?} {:?}", outcome.verdict, outcome.report.notes),
                    "stderr": outcome.stderr.text() });
            }
            Err(error) => return json!({ "name": name, "error": error.to_string() }),
        }
    }
    let mut value = quantiles(name, times);
    value["missing"] = json!(pool.metrics().missing);
    value
}

fn quantiles(name: &str, mut times: Vec<Duration>) -> Value {
    times.sort_unstable();
    let at = |part: usize| times.get(times.len().saturating_sub(1) * part / 100).map(Duration::as_secs_f64);
    let ms = |part: usize| at(part).map(|seconds| seconds * 1e3);
    json!({ "name": name, "samples": times.len(), "ms": { "min": ms(0), "p10": ms(10), "p50": ms(50), "p90": ms(90) } })
}

fn cold(name: &str, sandbox: &Sandbox, program: &Program, samples: usize) -> Value {
    let mut times = Vec::new();
    for _ in 0..samples {
        let start = Instant::now();
        match sandbox.run(program, &Cancel::new(), &mut |_| {}) {
            Ok(outcome) if outcome.verdict.is_ok() => times.push(start.elapsed()),
            Ok(outcome) => return json!({ "name": name, "error": outcome.stderr.text() }),
            Err(error) => return json!({ "name": name, "error": error.to_string() }),
        }
    }
    quantiles(name, times)
}

fn rate(name: &str, builder: PoolBuilder, sandbox: &Sandbox, program: &Program, runs: usize) -> Value {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = match builder.idle_workers(2 * threads).build() {
        Ok(pool) => Arc::new(pool),
        Err(error) => return json!({ "name": name, "error": error.to_string() }),
    };
    if let Some(reason) = ready(&pool, 2 * threads) {
        return json!({ "name": name, "error": reason });
    }
    let pooled = sandbox.clone().backend(pool.clone());
    let left = AtomicUsize::new(runs);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                    .is_ok()
                {
                    let _ = pooled.run(program, &Cancel::new(), &mut |_| {});
                }
            });
        }
    });
    let metrics = pool.metrics();
    let per_second = metrics.served as f64 / start.elapsed().as_secs_f64();
    json!({ "name": name, "per_second": per_second, "threads": threads, "metrics": metrics })
}

fn main() {
    let sandbox = sandbox();
    let python = |code: &str| Program::code(Language::Python, code);
    let plain = || Pool::builder(&sandbox).language(Language::Python);
    let data = || plain().preload(["numpy", "pandas"]).warm_up(GROUP_BY);
    let directory = tempfile::tempdir().ok();
    let place = directory.as_ref().map_or_else(std::env::temp_dir, |directory| directory.path().to_owned());
    let within = sandbox.clone().workspace(Workspace::Host(place));
    let javascript = Program::code(Language::JavaScript, "console.log(1)");
    let bash = Program::code(Language::Bash, "echo 1");
    let argv = Program::argv(["/bin/true"]);
    let results = [
        cold("strict true, cold", &sandbox, &argv, 100),
        serial("strict true, pool", Pool::builder(&sandbox), &sandbox, &argv, 100),
        cold("print(1), cold", &sandbox, &python("print(1)"), 20),
        forked("print(1), bare fork", "", "print(1)", 200),
        serial("print(1), pool", plain(), &sandbox, &python("print(1)"), 200),
        cold("print(1) in a directory of the host, cold", &within, &python("print(1)"), 20),
        serial(
            "print(1) in a directory of the host, pool",
            plain().host_directories(true),
            &within,
            &python("print(1)"),
            200,
        ),
        serial(
            "print(1), pool that takes directories",
            plain().host_directories(true),
            &sandbox,
            &python("print(1)"),
            200,
        ),
        serial("print(1), pool with pandas", data(), &sandbox, &python("print(1)"), 100),
        cold("group-by, cold", &sandbox, &python(GROUP_BY), 3),
        forked("group-by, bare fork", GROUP_BY, GROUP_BY, 100),
        serial("group-by, pool with warm-up", data(), &sandbox, &python(GROUP_BY), 100),
        serial("bash, pool", Pool::builder(&sandbox).language(Language::Bash), &sandbox, &bash, 100),
        cold("javascript, cold", &sandbox, &javascript, 5),
        serial(
            "javascript, pool",
            Pool::builder(&sandbox).language(Language::JavaScript),
            &sandbox,
            &javascript,
            20,
        ),
        rate("print(1), pool, rate", plain(), &sandbox, &python("print(1)"), 1000),
    ];
    drop(directory);
    if std::env::args().any(|argument| argument == "--json") {
        let left_out: Vec<&Value> = results.iter().filter(|result| result["error"].is_string()).collect();
        let ratios = [
            ratio(&results, "print(1), pool", "print(1), bare fork"),
            ratio(&results, "group-by, pool with warm-up", "group-by, bare fork"),
        ];
        let rows: Vec<Value> = results.iter().flat_map(rows).chain(ratios.into_iter().flatten()).collect();
        println!("{}", json!({ "rows": rows, "left_out": left_out }));
    } else {
        println!("{}", serde_json::to_string_pretty(&json!({ "pool_cost": results })).unwrap_or_default());
    }
}
