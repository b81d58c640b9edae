//! The cost of a sandbox over a plain process: the tenth percentile of interleaved samples, in microseconds.
//!
//! `cargo run --release -p toolpost-sandbox --example spawn_cost -- [--json] [--samples N]`

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use toolpost_sandbox::{Cancel, Host, Language, Level, Program, Sandbox};

type Failure = Box<dyn std::error::Error>;

/// Where `cargo xtask bench` puts the peer that comes from npm.
const SANDBOX_RUNTIME: &str = ".dev/peers/node_modules/.bin/srt";

/// The command, which `cargo xtask bench` builds first.
const COMMAND: &str = "target/release/toolpost";

/// One thing that is timed.
struct Subject {
    name: &'static str,
    /// The number of rounds from one sample to the next: a slow case with a clear share takes few.
    every: usize,
    run: Box<dyn FnMut() -> Result<(), Failure>>,
    samples: Vec<Duration>,
}

fn plain(arguments: &'static [&'static str]) -> Box<dyn FnMut() -> Result<(), Failure>> {
    process(arguments, true)
}

/// A process that needs the variables of this one, such as `PATH`.
fn with_environment(arguments: &'static [&'static str]) -> Box<dyn FnMut() -> Result<(), Failure>> {
    process(arguments, false)
}

fn process(arguments: &'static [&'static str], is_clean: bool) -> Box<dyn FnMut() -> Result<(), Failure>> {
    Box::new(move || {
        let (program, rest) = arguments.split_first().ok_or("no program")?;
        #[expect(clippy::disallowed_methods, reason = "the process that the sandbox is compared with")]
        let mut command = Command::new(program);
        if is_clean {
            command.env_clear();
        }
        let status = command.args(rest).stdin(Stdio::null()).stdout(Stdio::null()).status()?;
        if status.success() { Ok(()) } else { Err(format!("{program}: {status}").into()) }
    })
}

fn confined(level: Level, program: Program) -> Box<dyn FnMut() -> Result<(), Failure>> {
    let sandbox = Sandbox::new().level(level);
    Box::new(move || {
        let outcome = sandbox.run(&program, &Cancel::new(), &mut |_| {})?;
        if outcome.verdict.is_ok() { Ok(()) } else { Err(format!("{:?}", outcome.verdict).into()) }
    })
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let json = arguments.iter().any(|argument| argument == "--json");
    let samples = match arguments.iter().position(|argument| argument == "--samples") {
        Some(place) => arguments.get(place + 1).ok_or("--samples needs a number")?.parse::<usize>()?.max(10),
        None => 300,
    };
    let mut subjects: Vec<Subject> = Vec::new();
    let mut add = |name: &'static str, run: Box<dyn FnMut() -> Result<(), Failure>>| {
        let every = if name.starts_with("srt") {
            20
        } else if name.ends_with("python") {
            4
        } else {
            1
        };
        subjects.push(Subject { name, every, run, samples: Vec::new() });
    };
    add("plain_true", plain(&["/bin/true"]));
    for level in Level::ALL {
        if Host::probe().availability(level).is_some_and(|entry| entry.available) {
            let name = match level {
                Level::Minimal => "minimal_true",
                Level::Strict => "strict_true",
                Level::Maximum => "maximum_true",
                _ => "standard_true",
            };
            add(name, confined(level, Program::argv(["/bin/true"])));
        }
    }
    add("plain_python", plain(&["/usr/bin/python3", "-I", "-c", "print(1)"]));
    add("strict_python", confined(Level::Strict, Program::code(Language::Python, "print(1)")));
    if Path::new("/usr/bin/bwrap").exists() {
        add(
            "bwrap_true",
            plain(&[
                "/usr/bin/bwrap",
                "--unshare-all",
                "--die-with-parent",
                "--ro-bind",
                "/usr",
                "/usr",
                "--symlink",
                "usr/bin",
                "/bin",
                "--symlink",
                "usr/lib",
                "/lib",
                "--symlink",
                "usr/lib64",
                "/lib64",
                "--proc",
                "/proc",
                "--dev",
                "/dev",
                "--tmpfs",
                "/tmp",
                "/bin/true",
            ]),
        );
    }
    // The same namespaces, and nothing else.
    if Path::new("/usr/bin/unshare").exists() {
        add(
            "unshare_true",
            plain(&[
                "/usr/bin/unshare",
                "--user",
                "--mount",
                "--uts",
                "--ipc",
                "--net",
                "--pid",
                "--cgroup",
                "--fork",
                "/bin/true",
            ]),
        );
    }
    // The whole command, as a person types it.
    if Path::new(COMMAND).exists() {
        add("exec_true", with_environment(&[COMMAND, "exec", "--quiet", "--level", "strict", "--", "true"]));
        add("command_version", with_environment(&[COMMAND, "--version"]));
    }
    if Path::new(SANDBOX_RUNTIME).exists() {
        add("srt_true", with_environment(&[SANDBOX_RUNTIME, "true"]));
    }
    // A subject that does not run here is omitted and reported.
    let mut failed = Vec::new();
    subjects.retain_mut(|subject| match (subject.run)() {
        Ok(()) => true,
        Err(error) => {
            failed.push(format!("{}: {error}", subject.name));
            false
        }
    });
    for round in 0..samples {
        for subject in &mut subjects {
            if round % subject.every != 0 {
                continue;
            }
            let start = Instant::now();
            (subject.run)()?;
            subject.samples.push(start.elapsed());
        }
    }
    let mut text = String::new();
    let base = subjects.first_mut().map_or(Duration::ZERO, |subject| percentile(&mut subject.samples, 10));
    for subject in &mut subjects {
        let (low, middle) = (percentile(&mut subject.samples, 10), percentile(&mut subject.samples, 50));
        let (low_micros, middle_micros) = (low.as_secs_f64() * 1e6, middle.as_secs_f64() * 1e6);
        let over = low_micros - base.as_secs_f64() * 1e6;
        if json {
            let separator = if text.is_empty() { "" } else { "," };
            let name = subject.name;
            write!(
                text,
                "{separator}{{\"name\":\"start of {name}, p10\",\"value\":{low_micros:.1},\"unit\":\"µs\"}}"
            )?;
            if name == "strict_true" {
                write!(
                    text,
                    ",{{\"name\":\"{name} over a plain start, p10\",\"value\":{over:.1},\"unit\":\"µs\"}}"
                )?;
            }
        } else {
            writeln!(
                text,
                "{:16} p10 {low_micros:9.1} µs   p50 {middle_micros:9.1} µs   over plain {over:9.1} µs",
                subject.name
            )?;
        }
    }
    let plain_start = base.as_secs_f64();
    let mut p10 = |name: &str| {
        subjects
            .iter_mut()
            .find(|subject| subject.name == name)
            .map(|subject| percentile(&mut subject.samples, 10).as_secs_f64())
    };
    let strict = p10("strict_true");
    let mut over_strict = |name: &str| p10(name).zip(strict).map(|(peer, strict)| peer / strict);
    let ratio = over_strict("bwrap_true");
    let runtime = over_strict("srt_true");
    let over_namespaces = p10("unshare_true").zip(strict).map(|(peer, strict)| strict / peer);
    let command = p10("exec_true").zip(p10("bwrap_true")).map(|(own, peer)| own / peer);
    // bubblewrap's own work in a process that starts as slowly as the command: without cgroups and attestation.
    let floor =
        p10("bwrap_true").zip(p10("command_version")).map(|(peer, own)| (peer + own - plain_start) / peer);
    if json {
        if let Some(ratio) = ratio {
            write!(
                text,
                ",{{\"name\":\"bubblewrap over strict, true\",\"value\":{ratio:.2},\"unit\":\"×\",\
                 \"promise\":\"≥ 4 ×\",\"promise_min\":4}}"
            )?;
        }
        if let Some(ratio) = over_namespaces {
            write!(
                text,
                ",{{\"name\":\"strict over bare namespaces, true\",\"value\":{ratio:.2},\"unit\":\"×\",\
                 \"promise\":\"≤ 1 ×\",\"promise_max\":1}}"
            )?;
        }
        if let Some(ratio) = command {
            write!(
                text,
                ",{{\"name\":\"exec -- true over bubblewrap, whole process\",\"value\":{ratio:.2},\"unit\":\"×\",\
                 \"promise\":\"≤ 1 ×\",\"promise_max\":1}}"
            )?;
        }
        if let Some(ratio) = floor {
            write!(
                text,
                ",{{\"name\":\"the floor of that: bubblewrap's work with the command's start\",\
                 \"value\":{ratio:.2},\"unit\":\"×\"}}"
            )?;
        }
        if let Ok(file) = std::fs::metadata(COMMAND) {
            let megabytes = file.len() as f64 / 1e6;
            write!(
                text,
                ",{{\"name\":\"release binary\",\"value\":{megabytes:.1},\"unit\":\"MB\",\
                 \"promise\":\"≤ 30 MB\",\"promise_max\":30}}"
            )?;
        }
        if let Some(ratio) = runtime {
            write!(
                text,
                ",{{\"name\":\"sandbox-runtime over strict, true\",\"value\":{ratio:.0},\"unit\":\"×\"}}"
            )?;
        }
        text = format!("{{\"rows\":[{text}],\"left_out\":{failed:?}}}");
    } else {
        if let Some(ratio) = ratio {
            writeln!(text, "bubblewrap takes {ratio:.2} times as long as strict")?;
        }
        if let Some(ratio) = over_namespaces {
            writeln!(text, "strict takes {ratio:.2} times as long as `unshare` with the same namespaces")?;
        }
        if let Some(ratio) = command {
            writeln!(text, "`toolpost exec -- true` takes {ratio:.2} times as long as bubblewrap")?;
        }
        if let Some(ratio) = floor {
            writeln!(text, "bubblewrap's work with the command's start would take {ratio:.2} times as long")?;
        }
        if let Some(ratio) = runtime {
            writeln!(text, "sandbox-runtime takes {ratio:.0} times as long as strict")?;
        }
        for line in failed {
            writeln!(text, "left out: {line}")?;
        }
    }
    std::io::Write::write_all(&mut std::io::stdout(), format!("{}\n", text.trim_end()).as_bytes())?;
    Ok(())
}

fn percentile(samples: &mut [Duration], percent: usize) -> Duration {
    samples.sort_unstable();
    samples.get(samples.len() * percent / 100).copied().unwrap_or_default()
}
