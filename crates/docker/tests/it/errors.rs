//! Daemons that are gone, hang, lie or lose containers: each a typed error in time.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use toolpost_docker::{Docker, DockerError, DockerHost, Options, Pull};
use toolpost_sandbox::{Cancel, Error, Language, Limits, Program, Sandbox, SandboxEvent, SandboxHint};

use super::daemon::{Daemon, IMAGE};
use super::{containers_with_memory, docker_error, own_daemon, run, sandbox, shell};
use crate::support::{HELPER, eventually, is_helper};

const PATIENCE: Duration = Duration::from_millis(400);

/// A daemon that is only a socket: a function answers each connection.
fn fake(answer: impl Fn(UnixStream, String) + Send + 'static) -> (tempfile::TempDir, DockerHost) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("docker.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = vec![0u8; 4096];
            let size = stream.read(&mut head).unwrap_or(0);
            answer(stream, String::from_utf8_lossy(&head[..size]).into_owned());
        }
    });
    (directory, DockerHost::Unix(path))
}

fn connect(host: &DockerHost) -> DockerError {
    Docker::connect(host, Options::new(IMAGE).answer_timeout(PATIENCE)).unwrap_err()
}

/// Fails unless the work ends soon.
fn soon<T>(work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = work();
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    result
}

#[test]
fn a_missing_daemon_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let nowhere = DockerHost::Unix(directory.path().join("docker.sock"));
    let error = soon(|| connect(&nowhere));
    assert!(matches!(error, DockerError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("docker.sock"), "{error}");
    assert!(error.hint().unwrap().to_string().contains("DOCKER_HOST"), "{error}");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let host: DockerHost = format!("tcp://{closed}").parse().unwrap();
    assert!(matches!(soon(|| connect(&host)), DockerError::Unreachable { .. }));
    // The socket file exists without a listener.
    let path = directory.path().join("old.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(matches!(soon(|| connect(&DockerHost::Unix(path))), DockerError::Unreachable { .. }));
}

#[test]
fn a_hung_daemon_times_out() {
    // It accepts nothing; its queue is full.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("docker.sock");
    let listener = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _first = UnixStream::connect(&path).unwrap();
    assert!(matches!(soon(|| connect(&DockerHost::Unix(path))), DockerError::Timeout { .. }));
    // It accepts the request and sends nothing.
    let kept = std::sync::Mutex::new(Vec::new());
    let (_directory, host) = fake(move |stream, _| kept.lock().unwrap().push(stream));
    let error = soon(|| connect(&host));
    assert!(matches!(&error, DockerError::Timeout { limit, .. } if *limit == PATIENCE), "{error:?}");
    // It sends something now and then, forever.
    let (_directory, host) = fake(|mut stream, _| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        while stream.write_all(b"X: y\r\n").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    assert!(matches!(soon(|| connect(&host)), DockerError::Timeout { .. }));
    // It answers only the first request.
    let (_directory, host) = fake(|mut stream, head| {
        if head.contains("/_ping") {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Length: 2\r\n\r\nOK");
        } else {
            std::thread::sleep(Duration::from_secs(5));
        }
    });
    assert!(matches!(soon(|| connect(&host)), DockerError::Timeout { .. }));
}

#[test]
fn invalid_answers_of_a_daemon_are_errors() {
    for (answer, expected) in [
        (&b"SSH-2.0-OpenSSH\r\n"[..], "not an HTTP/1.1 status line"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK", "Api-Version"),
        (b"HTTP/1.1 200 OK\r\nApi-Version: 1.12\r\nContent-Length: 0\r\n\r\n", "expected at least 1.41"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "length is not a number"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "chunk has no size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nOKOK\r\n", "exceeds its size"),
        (b"HTTP/1.1 500 no\r\nContent-Length: 20\r\n\r\n{\"message\": \"\\u001bx\"}", "status 500"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort", "no Docker daemon"),
    ] {
        let (_directory, host) = fake(move |mut stream, _| {
            let _ = stream.write_all(answer);
        });
        let error = soon(|| connect(&host)).to_string();
        assert!(error.contains(expected) && !error.contains('\u{1b}'), "{expected}: {error}");
    }
    // Endless headers and answers use bounded memory.
    for line in [&b"HTTP/1.1 200 OK\r\n"[..], b"HTTP/1.1 200 OK\r\n\r\n"] {
        let (_directory, host) = fake(move |mut stream, _| {
            let _ = stream.write_all(line);
            let block = [b"X: ", [b'y'; 997].as_slice(), b"\r\n"].concat().repeat(64);
            while stream.write_all(&block).is_ok() {}
        });
        let options = Options::new(IMAGE).answer_timeout(Duration::from_secs(30));
        let error = Docker::connect(&host, options).unwrap_err();
        assert!(matches!(error, DockerError::Protocol { .. }), "{error:?}");
    }
}

#[test]
fn removing_a_slowly_dying_container_is_retried() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let (_directory, host) = fake(move |mut stream, head| {
        let leftover = format!(r#"[{{"Id": "{}", "Labels": {{"toolpost": "container"}}}}]"#, "a".repeat(64));
        let dying = r#"{"message": "PID 7 is zombie and can not be killed"}"#;
        let (status, body) = match head.split(' ').nth(1).unwrap_or_default() {
            path if path.contains("/_ping") => ("200 OK", "OK"),
            path if path.contains("/info") => ("200 OK", "{}"),
            path if path.contains("/containers/json") => ("200 OK", leftover.as_str()),
            _ if head.starts_with("DELETE") && counter.fetch_add(1, Ordering::Relaxed) < 2 => {
                ("500 no", dying)
            }
            _ => ("204 done", ""),
        };
        let length = body.len();
        let _ = write!(
            stream,
            "HTTP/1.1 {status}\r\nApi-Version: 1.41\r\nContent-Length: {length}\r\n\r\n{body}"
        );
    });
    soon(|| Docker::connect(&host, Options::new(IMAGE)).unwrap());
    assert_eq!(asked.load(Ordering::Relaxed), 3);
}

/// Runs a program that sleeps, and acts once it prints.
fn disturb(docker: &Docker, wall: Duration, mut disturbance: impl FnMut()) -> Error {
    let sandbox = sandbox(docker).limits(Limits::default().with_wall(wall));
    let program = Program::code(Language::Sh, "echo go; sleep 60");
    let mut on_event = |_: SandboxEvent<'_>| disturbance();
    sandbox.run(&program, &Cancel::new(), &mut on_event).unwrap_err()
}

#[test]
fn missing_images_and_runtimes_are_named() {
    let Some(daemon) = Daemon::get("missing_images_and_runtimes_are_named") else { return };
    let run_true = |options: Options| {
        let docker = Docker::connect(&daemon.host, options.idle_containers(0)).unwrap();
        run(&sandbox(&docker), &Program::argv(["true"]))
    };
    let error = soon(|| run_true(Options::new("toolpost/nothing:here")).unwrap_err());
    assert!(matches!(docker_error(&error), DockerError::ImageMissing { .. }), "{error}");
    assert_eq!(error.hint(), Some(SandboxHint::BuildImage { recipe: "nothing".into() }), "{error}");
    // The registry has no listener, so pulls fail at once; only the attempt differs.
    for pull in [Pull::Missing, Pull::Always] {
        let error = soon(|| run_true(Options::new("127.0.0.1:1/nothing:here").pull(pull)).unwrap_err());
        assert!(matches!(docker_error(&error), DockerError::NotPulled { .. }), "{pull:?}: {error}");
    }
    run_true(Options::new(IMAGE).pull(Pull::Missing)).unwrap();
    let error = Docker::connect(&daemon.host, Options::new(IMAGE).runtime("crun-nope")).unwrap_err();
    assert!(matches!(&error, DockerError::RuntimeMissing { known, .. } if known.contains("runc")), "{error}");
}

#[test]
fn a_removed_container_is_an_error() {
    let Some(daemon) = Daemon::get("a_removed_container_is_an_error") else { return };
    let docker = daemon.docker();
    let sandbox = sandbox(&docker);
    let program = Program::code(Language::Sh, "echo container $(hostname); sleep 60");
    let before = daemon.containers();
    let mut is_removed = false;
    let error = sandbox
        .run(&program, &Cancel::new(), &mut |_| {
            if std::mem::replace(&mut is_removed, true) {
                return;
            }
            // The shell prints before it starts `sleep`.
            eventually("the container is found", || {
                let new = daemon.containers().into_iter().filter(|name| !before.contains(name));
                // Other tests have containers too; only this one sleeps this long with this name.
                let own = |name: &String| {
                    daemon.request("GET", &format!("/containers/{name}/top"), "").contains("sleep 60")
                };
                let found: Vec<String> = new.filter(own).collect();
                for name in &found {
                    daemon.request("DELETE", &format!("/containers/{name}?force=1"), "");
                }
                !found.is_empty()
            });
        })
        .unwrap_err();
    assert!(matches!(docker_error(&error), DockerError::ContainerGone { .. }), "{error}");
}

#[test]
fn a_removed_idle_container_is_replaced() {
    let Some(daemon) = Daemon::get("a_removed_idle_container_is_replaced") else { return };
    let docker = daemon.docker();
    // Unique limits, so that this idle container is found.
    let sandbox = sandbox(&docker).limits(Limits::default().with_memory(333 << 20));
    docker.prewarm(&sandbox, 1).unwrap();
    for (name, _) in containers_with_memory(&daemon, 333 << 20) {
        daemon.request("DELETE", &format!("/containers/{name}?force=1"), "");
    }
    eventually("the removal is noticed", || {
        let outcome = run(&sandbox, &Program::argv(["true"])).unwrap();
        outcome.verdict.is_ok() && docker.idle_containers() == 0
    });
}

#[test]
fn a_daemon_that_dies_or_stops_during_a_run_times_out() {
    let name = "a_daemon_that_dies_or_stops_during_a_run_times_out";
    let Some(mut daemon) = own_daemon(name) else { return };
    let options = Options::new(IMAGE).idle_containers(0).answer_timeout(Duration::from_secs(3));
    let docker = Docker::connect(&daemon.host, options).unwrap();
    let _ = docker.prewarm(&sandbox(&docker), 1).unwrap();
    // The wall time is over, and neither the container nor the daemon answers.
    let error = soon(|| disturb(&docker, Duration::from_secs(2), || daemon.signal(Signal::STOP)));
    assert!(matches!(docker_error(&error), DockerError::Timeout { .. }), "{error}");
    daemon.signal(Signal::CONT);
    let _ = docker.prewarm(&sandbox(&docker), 1).unwrap();
    let error = soon(|| disturb(&docker, Duration::from_secs(30), || daemon.kill()));
    assert!(matches!(docker_error(&error), DockerError::Unreachable { .. }), "{error}");
}

#[test]
fn a_container_has_only_our_settings() {
    let Some(daemon) = Daemon::get("a_container_has_only_our_settings") else { return };
    let docker = daemon.docker();
    let sandbox = sandbox(&docker).limits(Limits::default().with_memory(334 << 20).with_cpu_quota(0.5));
    docker.prewarm(&sandbox, 1).unwrap();
    let (_, container) = containers_with_memory(&daemon, 334 << 20).remove(0);
    let (config, host) = (&container["Config"], &container["HostConfig"]);
    let is_empty = |value: &serde_json::Value| {
        value.is_null() || value.as_array().is_some_and(Vec::is_empty) || value == ""
    };
    for name in ["Binds", "Mounts", "CapAdd", "Devices", "VolumesFrom", "PidMode", "PortBindings", "Links"] {
        let value = &host[name];
        assert!(
            is_empty(value) || value.as_object().is_some_and(serde_json::Map::is_empty),
            "{name}: {value}"
        );
    }
    for (name, expected) in [
        ("NetworkMode", serde_json::json!("none")),
        ("Privileged", false.into()),
        ("ReadonlyRootfs", true.into()),
        ("CapDrop", serde_json::json!(["ALL"])),
        ("Memory", (334u64 << 20).into()),
        ("MemorySwap", (334u64 << 20).into()),
        ("PidsLimit", 65.into()),
        ("NanoCpus", 500_000_000u64.into()),
        ("IpcMode", "private".into()),
    ] {
        assert_eq!(host[name], expected, "{name}");
    }
    assert_eq!(config["Entrypoint"], serde_json::json!(["/.toolpost/init"]));
    assert_eq!(config["User"], "65534:65534");
    let mut labels: Vec<_> = config["Labels"].as_object().unwrap().keys().map(String::as_str).collect();
    labels.sort_unstable();
    assert!(labels.iter().all(|label| label.starts_with("toolpost")), "{labels:?}");
    assert!(!host["Tmpfs"]["/workspace"].is_null());
    // The image's own entry point, user and variables have no effect.
    let outcome = shell(&sandbox, "env | sort | cut -d= -f1 | tr '\\n' ' '").unwrap();
    assert_eq!(outcome.stdout.text().trim(), "HOME LANG PATH PWD SHLVL TERM TMPDIR USER");
}

/// The program that dies: another test starts it.
#[test]
fn crash_helper() {
    if !is_helper() {
        return;
    }
    #[expect(clippy::disallowed_methods, reason = "the test that starts this one says so")]
    let host: DockerHost = std::env::var("TOOLPOST_TEST_DOCKER").unwrap().parse().unwrap();
    let docker = Docker::connect(&host, Daemon::options()).unwrap();
    let limits = Limits::default().with_memory(335 << 20).with_wall(Duration::from_mins(5));
    let sandbox = Sandbox::new().backend(Arc::new(docker.clone())).limits(limits);
    docker.prewarm(&sandbox, 2).unwrap();
    let program = Program::code(Language::Sh, "echo ready; sleep 98765");
    let _ = sandbox.run(&program, &Cancel::new(), &mut |_| println!("ready"));
}

#[test]
fn a_killed_host_program_leaves_nothing_running() {
    let Some(daemon) = Daemon::get("a_killed_host_program_leaves_nothing_running") else { return };
    #[expect(clippy::disallowed_methods, reason = "a host program that can be killed")]
    let mut helper = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["errors::crash_helper", "--exact", "--nocapture"])
        .env(HELPER, "1")
        .env("TOOLPOST_TEST_DOCKER", daemon.host.to_string())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = std::io::BufReader::new(helper.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("ready") {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut output, &mut line).unwrap() > 0, "the helper ended early");
    }
    let ours = || containers_with_memory(&daemon, 335 << 20);
    assert_eq!(ours().len(), 2, "one runs, one waits");
    // They stay while their owner lives.
    drop(daemon.docker());
    assert_eq!(ours().len(), 2);
    helper.kill().unwrap();
    helper.wait().unwrap();
    eventually("the containers end by themselves", || {
        ours().iter().all(|(_, value)| value["State"]["Running"] == false)
    });
    assert!(!crate::support::is_running("sleep 98765"));
    drop(daemon.docker());
    assert_eq!(ours().len(), 0, "the next program removes what is left");
}
