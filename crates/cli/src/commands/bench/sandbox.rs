//! The sandbox suite: the start of a program, plain and confined.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use toolpost_sandbox::{Cancel, Host, Language, Level, Pool, Program, SYSTEM_SEARCH_PATH, Sandbox};

use super::figures::median;
use super::process::{Watch, find, find_in, words};
use super::{Figures, Subject};

/// Maximum samples of a subject in one round.
const SAMPLES: usize = 20;
/// The time of a subject in one round, at least two samples.
const TIME: Duration = Duration::from_millis(300);
/// The image of `docker run`, made by `toolpost image build busybox --docker`.
const IMAGE: &str = "toolpost/busybox";
const CODE: &str = "print(1)";
/// The time limit of a prewarmed interpreter.
const READY: Duration = Duration::from_secs(10);

/// Takes samples and returns the median in milliseconds. The first one is not counted.
fn sample(watch: &Watch, mut run: impl FnMut() -> Result<Duration, String>) -> Result<f64, String> {
    run()?;
    let (mut samples, begun) = (Vec::new(), Instant::now());
    while samples.len() < 2 || (samples.len() < SAMPLES && begun.elapsed() < TIME) {
        if watch.is_cancelled() {
            return Err("cancelled".to_owned());
        }
        samples.push(run()?.as_secs_f64() * 1e3);
    }
    Ok(median(&samples))
}

/// Measures a command line in front of the measured program.
fn command(watch: &Watch, prefix: &[OsString], python: Option<&[OsString]>) -> Result<Figures, String> {
    let programs =
        [("sandbox-true", Some(words(&["true"]))), ("sandbox-python", python.map(<[OsString]>::to_vec))];
    let mut figures = Vec::new();
    for (metric, program) in programs {
        let Some(program) = program else { continue };
        let line = [prefix, &program].concat();
        // With the reason of a failure.
        watch.output(&line)?;
        figures.push((metric, sample(watch, || watch.time(&line))?));
    }
    Ok(figures)
}

fn confined(sandbox: &Sandbox, program: &Program) -> Result<Duration, String> {
    let begun = Instant::now();
    let outcome = sandbox.run(program, &Cancel::new(), &mut |_| {}).map_err(|error| error.to_string())?;
    let time = begun.elapsed();
    if outcome.verdict.is_ok() { Ok(time) } else { Err(format!("{:?}", outcome.verdict)) }
}

/// Runs in a pool with an idle interpreter.
fn pooled(watch: &Watch, sandbox: &Sandbox) -> Result<Figures, String> {
    let pool = Pool::builder(sandbox).language(Language::Python).idle_workers(2).build();
    let pool = Arc::new(pool.map_err(|error| error.to_string())?);
    let with_pool = sandbox.clone().backend(pool.clone());
    let program = Program::code(Language::Python, CODE);
    let value = sample(watch, || {
        let begun = Instant::now();
        while pool.metrics().ready < 2 {
            if let Some(reason) = pool.metrics().unavailable {
                return Err(reason);
            }
            if begun.elapsed() > READY || watch.is_cancelled() {
                return Err("no interpreter was ready in time".to_owned());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        confined(&with_pool, &program)
    })?;
    Ok(vec![("sandbox-python", value)])
}

/// The best level of this host, and its layers in a run.
pub(super) fn layers() -> Option<(Level, Vec<String>)> {
    let level = Host::probe().best()?;
    let run = Sandbox::new().level(level).run(&Program::argv(["true"]), &Cancel::new(), &mut |_| {});
    let names = |layer| serde_json::to_value(layer).ok()?.as_str().map(str::to_owned);
    Some((level, run.ok()?.report.layers.iter().filter_map(names).collect()))
}

pub(super) fn subjects(own: &Path) -> Vec<Subject> {
    let level = Host::probe().best().unwrap_or(Level::Standard);
    let python = find_in("python3", SYSTEM_SEARCH_PATH.as_ref()).map(|file| {
        let mut line = vec![file.into_os_string()];
        line.extend(words(&["-I", "-c", CODE]));
        line
    });
    let sandbox = Sandbox::new().level(level);
    let peer = |name: &str, program: &str, fix: &str, options: &[&str]| {
        let file = find(program);
        let missing = file.is_none().then(|| format!("`{program}` is not on PATH"));
        let mut prefix = vec![file.unwrap_or_default().into_os_string()];
        prefix.extend(words(options));
        let mut python = python.clone().filter(|_| program != "docker");
        if let Some(line) = python.as_mut().filter(|_| program == "srt") {
            // `srt -c` takes a line of a shell.
            let quoted: Vec<String> = line.iter().map(|word| format!("'{}'", word.display())).collect();
            *line = vec![quoted.join(" ").into()];
        }
        Subject::new(name, move |watch| command(watch, &prefix, python.as_deref())).missing(missing).fix(fix)
    };
    let (plain, has_python) = (python.clone(), python.is_some());
    let own_exec = [&[own.into()], &words(&["exec", "--quiet", "--level", level.name(), "--"])[..]].concat();
    let (own_python, cold) = (python.clone(), sandbox.clone());
    vec![
        Subject::new(format!("Toolpost, level {level}"), move |watch| {
            let mut programs = vec![("sandbox-true", Program::argv(["true"]))];
            if has_python {
                programs.push(("sandbox-python", Program::code(Language::Python, CODE)));
            }
            let measure =
                |(metric, program): (_, Program)| Ok((metric, sample(watch, || confined(&cold, &program))?));
            programs.into_iter().map(measure).collect()
        })
        .toolpost(),
        Subject::new("Toolpost, prewarmed pool", move |watch| pooled(watch, &sandbox)).toolpost(),
        Subject::new("`toolpost exec`, whole command", move |watch| {
            command(watch, &own_exec, own_python.as_deref())
        })
        .toolpost(),
        Subject::new("no sandbox", move |watch| command(watch, &[], plain.as_deref())),
        peer(
            "bubblewrap",
            "bwrap",
            "`apt install bubblewrap`",
            &[
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
            ],
        )
        .version_of(&["bwrap", "--version"]),
        peer("sandbox-runtime", "srt", "`npm install --global @anthropic-ai/sandbox-runtime`", &["-c"])
            .version_of(&["srt", "--version"]),
        peer("codex sandbox", "codex", "`npm install --global @openai/codex`", &["sandbox", "--"])
            .version_of(&["codex", "--version"]),
        peer(
            "docker run",
            "docker",
            "install Docker, then `toolpost image build busybox --docker`",
            &["run", "--rm", "--network", "none", "--pull", "never", IMAGE],
        )
        .version_of(&["docker", "--version"]),
    ]
}
