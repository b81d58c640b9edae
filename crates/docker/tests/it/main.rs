//! The Docker backend against a daemon of its own.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::panic,
    reason = "test helpers panic on failure and print what they skip"
)]

mod daemon;
mod directories;
#[path = "../../../sandbox/tests/it/egress.rs"]
#[expect(dead_code, reason = "the tests of the sandbox use the rest")]
mod egress;
mod errors;
mod images;
mod live;
mod registry;
mod runs;
#[path = "../../../sandbox/tests/it/support.rs"]
#[expect(dead_code, reason = "the tests of the sandbox use the rest")]
mod support;
#[cfg(feature = "tls")]
mod tls;
mod tunnel;

use std::sync::Arc;
use std::time::Duration;

use daemon::Daemon;
use toolpost_docker::{Docker, DockerError};
use toolpost_sandbox::{Cancel, Error, Language, Limits, Outcome, Program, Sandbox};

fn sandbox(docker: &Docker) -> Sandbox {
    let limits = Limits::default().with_wall(Duration::from_mins(1));
    Sandbox::new().backend(Arc::new(docker.clone())).limits(limits)
}

fn run(sandbox: &Sandbox, program: &Program) -> Result<Outcome, Error> {
    sandbox.run(program, &Cancel::new(), &mut |_| {})
}

fn shell(sandbox: &Sandbox, code: &str) -> Result<Outcome, Error> {
    run(sandbox, &Program::code(Language::Sh, code))
}

/// The error of the backend in the error of a run.
fn docker_error(error: &Error) -> &DockerError {
    DockerError::from_sandbox(error).unwrap_or_else(|| panic!("{error}"))
}

/// A daemon of one test; none, with a message, if it is unavailable.
fn own_daemon(test: &str) -> Option<Daemon> {
    Daemon::start().inspect_err(|reason| println!("SKIP {test}: {reason}")).ok()
}

/// The containers with a memory limit, which identifies those of one test, with the daemon's information.
fn containers_with_memory(daemon: &Daemon, bytes: u64) -> Vec<(String, serde_json::Value)> {
    let inspect = |name: String| {
        let text = daemon.request("GET", &format!("/containers/{name}/json"), "");
        (name, serde_json::from_str(&text).unwrap_or_default())
    };
    let containers = daemon.containers().into_iter().map(inspect);
    containers.filter(|(_, value): &(_, serde_json::Value)| value["HostConfig"]["Memory"] == bytes).collect()
}
