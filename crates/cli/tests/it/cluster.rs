//! `toolpost flow` on a Restate cluster. Compiled with the feature `restate` alone.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::support::{Running, TestEnv, eventually};

const PLAN: &str = "kind: flow
name: routed
input: { n: { type: integer } }
steps:
  - { id: here, tool: calculate, with: { expression: '${{ input.n }} * 2' } }
  - { id: there, pool: gpu, tool: only_here }
  - { id: ok, needs: there, approve: 'Continue?' }
  - { id: wanted, needs: ok, signal: go }
output: ['${{ steps.here.output.text }}', '${{ steps.there.output }}', '${{ steps.wanted.output }}']
";

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A Restate server on loopback ports.
struct Server {
    child: Child,
    ingress: String,
    admin: String,
    _directory: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn is_healthy(port: u16, path: &str) -> bool {
    let answer = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    answer().is_ok_and(|text| text.starts_with("HTTP/1.1 200"))
}

/// A server that is ready; `None` if the program is not installed.
fn server(test: &str) -> Option<Server> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../.dev/restate/node_modules/@restatedev/restate-server-linux-x64/bin/restate-server");
    if !program.exists() {
        println!("SKIP {test}: the Restate server is not installed; `cargo xtask test` installs it");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let [fabric, ingress, admin] = [(); 3].map(|()| free_port());
    let config = format!(
        "base-dir = \"{}\"\nbind-ip = \"127.0.0.1\"\nbind-port = {fabric}\nlisten-mode = \"tcp\"
auto-provision = true\ndefault-num-partitions = 2\ndisable-telemetry = true
rocksdb-total-memory-size = \"192.0 MiB\"\nlog-filter = \"warn\"
[ingress]\nbind-port = {ingress}\n[admin]\nbind-port = {admin}\ndisable-web-ui = true\n",
        directory.path().display()
    );
    let file = directory.path().join("restate.toml");
    std::fs::write(&file, config).unwrap();
    #[expect(clippy::disallowed_methods, reason = "the server of the test")]
    let mut command = Command::new(program);
    command.args(["--no-logo", "--config-file"]).arg(file).env_clear().current_dir(directory.path());
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let server = Server {
        child,
        ingress: format!("http://127.0.0.1:{ingress}"),
        admin: format!("http://127.0.0.1:{admin}"),
        _directory: directory,
    };
    eventually("the server is ready", || {
        is_healthy(admin, "/health") && is_healthy(ingress, "/restate/health")
    });
    Some(server)
}

fn plan() -> TestEnv {
    let env = TestEnv::new();
    env.write("plan.yaml", PLAN);
    env.run(["trust", "plan.yaml"]).ok();
    env
}

/// Starts a worker and waits until it is registered.
fn worker(env: &TestEnv, server: &Server, options: &[&str]) -> Running {
    let port = free_port();
    let (listen, file) = (format!("127.0.0.1:{port}"), format!("worker{port}.txt"));
    let words = ["flow", "worker", "--listen", listen.as_str(), "--register", server.admin.as_str()];
    let worker = env.start_with_errors_in(&file, words.iter().chain(options));
    eventually("the worker is registered", || env.read(&file).contains("registered"));
    worker
}

#[test]
fn steps_go_to_the_workers_of_their_pools() {
    let Some(server) = server("steps_go_to_the_workers_of_their_pools") else { return };
    let env = plan();
    // The worker of the pool `default` does not have this tool.
    let tool = "[[tool]]\nname = \"only_here\"\ndescription = \"Say where.\"\nargs = [\"there\"]\n";
    env.write("gpu.toml", format!("kind = \"command\"\nv = 1\nprogram = \"echo\"\n{tool}"));
    env.run(["trust", "gpu.toml"]).ok();
    let cluster = ["--cluster", server.ingress.as_str()];
    let general = worker(&env, &server, &[&cluster[..], &["--max-parallel", "200"]].concat());
    let early =
        env.start_with_errors_in("early.txt", ["flow", "run", "plan.yaml", "n=1"].iter().chain(&cluster));
    eventually("the missing pool is reported", || {
        env.read("early.txt").contains("no worker of the pool `gpu`, so its steps wait")
    });
    eventually("the run has begun, and its pool is reported", || {
        let shown = env.run(["flow", "show", "last"].iter().chain(&cluster));
        shown.status.success() && shown.err.contains("no worker of the pool `gpu`")
    });
    // It stays with the cluster, and continues when the pool has a worker.
    early.signal(rustix::process::Signal::TERM);
    early.finish().exit(130);
    let gpu = worker(&env, &server, &["--pool", "gpu", "--tools", "gpu.toml"]);
    let run =
        env.start_with_errors_in("errors.txt", ["flow", "run", "plan.yaml", "n=4"].iter().chain(&cluster));
    let id = || Some(env.read("errors.txt").lines().next()?.split_whitespace().nth(1)?.to_owned());
    eventually("the run has an id", || id().is_some());
    let id = id().unwrap();
    let send = |words: &[&str]| env.run(["flow"].iter().chain(words).chain(&cluster));
    eventually("the approval is sent", || send(&["approve", id.as_str()]).status.success());
    send(&["signal", id.as_str(), "go", "7"]).ok();
    let finished = run.finish();
    assert_eq!(finished.json(), json!(["8", "there\n", 7]), "{finished}");
    assert_eq!(send(&["show", id.as_str(), "--json"]).ok().json()["state"], "succeeded");
    let listed = |options: &[&str]| -> Vec<String> {
        let runs = send(&[&["ls", "--json"], options].concat()).ok().json()["runs"].clone();
        runs.as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
    };
    eventually("the end is listed", || listed(&["--status", "succeeded"]) == [id.as_str()]);
    assert_eq!(listed(&["--name", "routed", "--since", "1h", "--limit", "1"]), [id.as_str()]);
    assert!(listed(&["--name", "other"]).is_empty());
    assert_eq!(send(&["show", "last", "--json"]).ok().json()["id"], id.as_str());
    let late = send(&["cancel", &id[..id.len() - 1]]).exit(1);
    assert!(late.err.contains("the run has ended (succeeded)"), "{late}");
    // The run is the cluster's: its command may end.
    let run =
        env.start_with_errors_in("second.txt", ["flow", "run", "plan.yaml", "n=4"].iter().chain(&cluster));
    let id = || Some(env.read("second.txt").lines().next()?.split_whitespace().nth(1)?.to_owned());
    eventually("the second run has an id", || id().is_some());
    let id = id().unwrap();
    eventually("the second approval is sent", || send(&["approve", id.as_str()]).status.success());
    run.signal(rustix::process::Signal::TERM);
    run.finish().exit(130);
    assert_eq!(listed(&["--status", "waiting"])[0], id);
    send(&["signal", "last", "go", "7"]).ok();
    let resumed = send(&["resume", "last"]).ok();
    assert_eq!(resumed.json(), json!(["8", "there\n", 7]), "{resumed}");
    assert_eq!(send(&["show", id.as_str(), "--json"]).ok().json()["state"], "succeeded");
    for worker in [general, gpu] {
        worker.signal(rustix::process::Signal::INT);
        worker.finish();
    }
}

#[test]
fn options_of_the_worker_are_rejected_and_a_dry_run_reaches_no_cluster() {
    let env = plan();
    let nowhere = "http://127.0.0.1:1";
    let run = |options: &[&str]| {
        env.run(["flow", "run", "plan.yaml", "n=1", "--cluster", nowhere].iter().chain(options))
    };
    assert_eq!(run(&["--dry-run"]).ok().out, "valid\n");
    for option in [&["--tools", "builtin"][..], &["--yes"], &["--durability", "none"], &["--secret", "KEY"]] {
        let refused = run(option).exit(2);
        assert!(refused.err.contains("has no effect on a cluster"), "{refused}");
    }
    let lost = run(&[]).exit(4);
    assert!(lost.err.contains("is unreachable"), "{lost}");
    let env = env.with("TOOLPOST_NO_NETWORK", "1");
    let url = "http://127.0.0.1:80@example.org/";
    let denied = env.run(["flow", "run", "plan.yaml", "n=1", "--cluster", url]).exit(1);
    assert!(denied.err.contains("`no_network` denies"), "{denied}");
}

#[test]
fn a_worker_is_closed_to_others() {
    let env = TestEnv::new();
    let open = env.run(["flow", "worker", "--listen", "0.0.0.0:0"]).exit(1);
    assert!(open.err.contains("needs an identity key"), "{open}");
    let key = env.run(["flow", "worker", "--listen", "127.0.0.1:0", "--identity-key", "nonsense"]).exit(1);
    assert!(key.err.contains("the identity key `nonsense` is invalid"), "{key}");
    let pool = env.run(["flow", "worker", "--listen", "127.0.0.1:0", "--pool", "a b"]).exit(1);
    assert!(pool.err.contains("the pool `a b` needs another name"), "{pool}");
    let Some(server) = server("a_worker_is_closed_to_others") else { return };
    let register = |more: &[&str]| {
        let words = ["flow", "worker", "--listen", "127.0.0.1:0", "--register", server.admin.as_str()];
        env.run(words.iter().chain(more)).exit(1)
    };
    // Restate does not sign its requests.
    let unsigned = register(&["--identity-key", "publickeyv1_w7YHemBctH5Ck2nQRQ47iBBqhNHy4FV7t2Usbye2A6f"]);
    assert!(unsigned.err.contains("401") || unsigned.err.contains("nauthorized"), "{unsigned}");
    let elsewhere = register(&["--url", "http://127.0.0.1:1"]);
    assert!(elsewhere.err.contains("127.0.0.1:1"), "{elsewhere}");
}

/// The lines of a page that the command without clusters does not have.
#[test]
fn the_help_names_the_options_of_clusters() {
    let env = TestEnv::new();
    for command in ["run", "resume", "ls", "show", "signal", "approve", "cancel", "worker"] {
        let page = env.run(["flow", command, "--help"]).ok().out;
        let line = page.lines().find(|line| line.contains("--cluster <URL>"));
        assert!(line.is_some_and(|line| line.contains("The ingress of a Restate")), "{page}");
    }
    let page = env.run(["flow", "worker", "--help"]).ok().out;
    for option in
        ["--pool <NAME>", "--listen <ADDRESS>", "--register <ADMIN_URL>", "--identity-key <PUBLIC_KEY>"]
    {
        assert!(page.contains(option), "{option}: {page}");
    }
}
