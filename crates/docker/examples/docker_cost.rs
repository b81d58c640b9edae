//! The cost of a run in a waiting container beside `docker exec` and `docker run`: interleaved samples, in one run.
//!
//! `cargo run --release -p toolpost-docker --example docker_cost -- [--json] [--samples N]
//! [--host unix:///SOCKET]`
//!
//! Without `--host` it starts a daemon of its own (packages `docker.io`, `iptables` and `busybox-static`, as root), with
//! its own directories and without any network, and removes it at the end.

use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use toolpost_docker::image::{Images, Recipe};
use toolpost_docker::{Docker, DockerHost, Options};
use toolpost_sandbox::{Cancel, Program, Sandbox};

type Failure = Box<dyn std::error::Error>;

const IMAGE: &str = "toolpost/busybox:cost";

/// One thing that is timed.
struct Subject<'a> {
    name: &'static str,
    /// Done before each sample, and not counted.
    before: Box<dyn FnMut() -> Result<(), Failure> + 'a>,
    run: Box<dyn FnMut() -> Result<(), Failure> + 'a>,
    samples: Vec<Duration>,
}

/// A daemon that ends with this value.
struct Daemon {
    process: Child,
    directory: tempfile::TempDir,
}

impl Daemon {
    #[expect(clippy::disallowed_methods, reason = "the daemon is what is measured")]
    fn start() -> Result<(Self, String), Failure> {
        let directory = tempfile::Builder::new().prefix("toolpost-cost-").tempdir()?;
        let place = |name: &str| directory.path().join(name);
        let host = format!("unix://{}", place("docker.sock").display());
        let process = Command::new("dockerd")
            .arg("--data-root")
            .arg(place("data"))
            .arg("--exec-root")
            .arg(place("exec"))
            .arg("--pidfile")
            .arg(place("pid"))
            .args(["--host", &host, "--iptables=false", "--bridge=none"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok((Self { process, directory }, host))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.process.wait();
        let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let prefix = self.directory.path().display().to_string();
        for place in table.lines().rev().filter_map(|line| line.split(' ').nth(1)) {
            if place.starts_with(&prefix) {
                let _ = rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH);
            }
        }
    }
}

fn client(host: &str, arguments: &[&str]) -> Result<String, Failure> {
    #[expect(clippy::disallowed_methods, reason = "the command that the backend is compared with")]
    let output = Command::new("docker").args(["--host", host]).args(arguments).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(format!("docker {arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim()).into())
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        arguments.get(place + 1).cloned()
    };
    let json = arguments.iter().any(|argument| argument == "--json");
    let samples = value("--samples").map_or(Ok(30), |text| text.parse::<usize>())?.max(5);
    let (_daemon, address) = match value("--host") {
        Some(address) => (None, address),
        None => {
            let (daemon, address) = Daemon::start()?;
            (Some(daemon), address)
        }
    };
    let host: DockerHost = address.parse()?;
    let started = Instant::now();
    let images = loop {
        match Images::connect(&host, Duration::from_secs(30)) {
            Ok(images) => break images,
            Err(error) if started.elapsed() > Duration::from_secs(40) => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    images.build(&Recipe::named("busybox")?, IMAGE, Duration::from_mins(1), &mut |_| {})?;
    let docker = Docker::connect(&host, Options::new(IMAGE).idle_containers(0))?;
    let sandbox = Sandbox::new().backend(Arc::new(docker.clone()));
    let program = Program::argv(["true"]);
    let ours = || -> Result<(), Failure> {
        let outcome = sandbox.run(&program, &Cancel::new(), &mut |_| {})?;
        if outcome.verdict.is_ok() { Ok(()) } else { Err(format!("{:?}", outcome.verdict).into()) }
    };
    let warm = || -> Result<(), Failure> {
        docker.prewarm(&sandbox, 1)?;
        // The daemon is still busy with the container before.
        std::thread::sleep(Duration::from_millis(300));
        Ok(())
    };
    let kept = client(&address, &["run", "--detach", "--network", "none", IMAGE, "sleep", "3600"])?;
    let nothing = || -> Result<(), Failure> { Ok(()) };
    let mut subjects = vec![
        Subject { name: "warm run", before: Box::new(warm), run: Box::new(ours), samples: Vec::new() },
        Subject {
            name: "docker exec",
            before: Box::new(nothing),
            run: Box::new(|| client(&address, &["exec", &kept, "true"]).map(drop)),
            samples: Vec::new(),
        },
        Subject {
            name: "docker run --rm",
            before: Box::new(nothing),
            run: Box::new(|| {
                client(&address, &["run", "--rm", "--network", "none", IMAGE, "true"]).map(drop)
            }),
            samples: Vec::new(),
        },
        Subject { name: "cold run", before: Box::new(nothing), run: Box::new(ours), samples: Vec::new() },
    ];
    // A subject that does not run here is omitted and reported.
    let mut failed = Vec::new();
    subjects.retain_mut(|subject| match (subject.before)().and_then(|()| (subject.run)()) {
        Ok(()) => true,
        Err(error) => {
            failed.push(format!("{}: {error}", subject.name));
            false
        }
    });
    for _ in 0..samples {
        for subject in &mut subjects {
            (subject.before)()?;
            let start = Instant::now();
            (subject.run)()?;
            subject.samples.push(start.elapsed());
        }
    }
    let mut rows = Vec::new();
    let mut text = String::new();
    let mut middles: Vec<(&str, f64)> = Vec::new();
    for subject in &mut subjects {
        subject.samples.sort_unstable();
        let at = |percent: usize| {
            subject
                .samples
                .get(subject.samples.len() * percent / 100)
                .map_or(0.0, |time| time.as_secs_f64() * 1e3)
        };
        let (low, middle) = (at(10), at(50));
        middles.push((subject.name, middle));
        writeln!(text, "{:16} p10 {low:9.2} ms   p50 {middle:9.2} ms", subject.name)?;
        let promise =
            if subject.name == "warm run" { ",\"promise\":\"≤ 10 ms\",\"promise_max\":10" } else { "" };
        rows.push(format!(
            "{{\"name\":\"Docker, {}, p50\",\"value\":{middle:.2},\"unit\":\"ms\"{promise}}}",
            subject.name
        ));
    }
    let middle = |name: &str| middles.iter().find(|(other, _)| *other == name).map(|(_, value)| *value);
    for other in ["docker exec", "docker run --rm"] {
        if let Some((other_time, ours)) = middle(other).zip(middle("warm run")) {
            let ratio = other_time / ours;
            writeln!(text, "`{other}` takes {ratio:.1} times as long as a warm run")?;
            rows.push(format!(
                "{{\"name\":\"{other} over a warm run\",\"value\":{ratio:.1},\"unit\":\"×\"}}"
            ));
        }
    }
    for line in &failed {
        writeln!(text, "left out: {line}")?;
    }
    if json {
        text = format!("{{\"rows\":[{}],\"left_out\":{failed:?}}}", rows.join(","));
    }
    drop(subjects);
    client(&address, &["rm", "--force", &kept])?;
    drop((sandbox, docker));
    images.remove(IMAGE)?;
    std::io::Write::write_all(&mut std::io::stdout(), format!("{}\n", text.trim_end()).as_bytes())?;
    Ok(())
}
