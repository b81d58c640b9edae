//! Live programs in containers.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::time::{Duration, Instant};

use toolpost_docker::{Docker, DockerError};
use toolpost_sandbox::{Error, Level, Limits, Program, Running, Stdin, Verdict, Workspace};

use super::daemon::Daemon;
use super::{own_daemon, sandbox};
use crate::support::eventually;

fn sh(script: &str) -> Program {
    Program::argv(["sh", "-c", script])
}

fn everything(mut stream: impl std::io::Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Waits until no container is left.
fn all_gone(daemon: &Daemon) {
    eventually("no container is left", || daemon.containers().is_empty());
}

#[test]
fn a_live_program_in_a_container_answers_line_by_line() {
    let name = "a_live_program_in_a_container_answers_line_by_line";
    // A separate daemon, so that every container belongs to this test.
    let Some(daemon) = own_daemon(name) else { return };
    let mut runtimes = vec![None];
    if daemon.has_own_kernel() {
        runtimes.push(Some("runsc"));
    } else {
        println!("SKIP {name}: there is no `runsc`; install the package `runsc`");
    }
    for runtime in runtimes {
        let mut options = Daemon::options().name_prefix("agent");
        options.runtime = runtime.map(str::to_owned);
        let docker = Docker::connect(&daemon.host, options).unwrap();
        let echo = "while read -r line; do echo ${#line}; done; echo end; echo bye >&2; exit 5";
        let mut running = sandbox(&docker).level(Level::Strict).start(&sh(echo)).unwrap();
        let id = running.container().unwrap().to_owned();
        let names = daemon.containers();
        let digits = names[0].strip_prefix("agent-").unwrap_or_else(|| panic!("{names:?}"));
        assert!(digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{names:?}");
        assert!(daemon.request("GET", &format!("/containers/{id}/json"), "").contains(&names[0]));
        let mut stdin = running.take_stdin().unwrap();
        let (stdout, stderr) = running.take_output().unwrap();
        assert!(running.take_stdin().is_none() && running.take_output().is_none());
        let mut stdout = BufReader::new(stdout);
        let mut best = Duration::MAX;
        for length in [3, 0, 70_000, 1, 1, 1] {
            let begun = Instant::now();
            stdin.write_all(format!("{}\n", "x".repeat(length)).as_bytes()).unwrap();
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            assert_eq!(line, format!("{length}\n"), "{runtime:?}");
            best = best.min(begun.elapsed());
        }
        println!("a line and its answer with the runtime {runtime:?}: {best:?}");
        assert!(!running.is_finished());
        drop(stdin);
        assert_eq!(everything(stdout), b"end\n");
        assert_eq!(everything(stderr), b"bye\n");
        let outcome = running.wait().unwrap();
        assert_eq!((&outcome.verdict, outcome.exit_code), (&Verdict::Exit { code: 5 }, Some(5)));
        assert_eq!(outcome.report.backend, "docker");
        assert!(outcome.stdout.bytes().is_empty() && outcome.changes.new.is_empty());
        drop(docker);
        all_gone(&daemon);
    }
}

#[test]
fn an_unread_stream_blocks_no_other() {
    let Some(daemon) = Daemon::get("an_unread_stream_blocks_no_other") else { return };
    let docker = daemon.docker();
    let size = 32 << 20;
    let script = format!("(yes | head -c {size}; echo full >&2) & echo first >&2; cat >&2; wait");
    let mut running = sandbox(&docker).start(&sh(&script)).unwrap();
    let mut stdin = running.take_stdin().unwrap();
    let (stdout, stderr) = running.take_output().unwrap();
    let mut stderr = BufReader::new(stderr);
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert_eq!(line, "first\n");
    // Its output has no reader, but errors and input continue.
    std::thread::sleep(Duration::from_millis(500));
    for letter in ["a", "b"] {
        stdin.write_all(format!("{letter}\n").as_bytes()).unwrap();
        line.clear();
        stderr.read_line(&mut line).unwrap();
        assert_eq!(line, format!("{letter}\n"), "the program stands still, or `full` would have come");
    }
    let mut read = vec![0; size];
    let mut stdout = stdout;
    stdout.read_exact(&mut read).unwrap();
    drop(stdin);
    assert_eq!(everything(stdout), b"");
    assert_eq!(everything(stderr), b"full\n");
    assert!(running.wait().unwrap().verdict.is_ok());
}

#[test]
fn a_closed_reader_closes_the_programs_end() {
    let Some(daemon) = Daemon::get("a_closed_reader_closes_the_programs_end") else { return };
    let docker = daemon.docker();
    let mut running = sandbox(&docker).start(&Program::argv(["yes"])).unwrap();
    let (mut stdout, _stderr) = running.take_output().unwrap();
    let mut start = [0; 100];
    stdout.read_exact(&mut start).unwrap();
    drop(stdout);
    let outcome = running.wait().unwrap();
    assert!(
        matches!(outcome.verdict, Verdict::Signal { signal: 13 } | Verdict::Exit { code: 1 }),
        "{outcome:?}"
    );
    // Output from before the end is still readable after everything is dead.
    let mut running = sandbox(&docker).start(&sh("yes | head -c 200000; echo e >&2")).unwrap();
    let (stdout, stderr) = running.take_output().unwrap();
    let outcome = running.wait().unwrap();
    assert!(outcome.verdict.is_ok(), "{outcome:?}");
    assert_eq!((everything(stdout).len(), everything(stderr)), (200_000, b"e\n".to_vec()));
}

#[test]
fn a_container_is_removed_with_its_program() {
    let Some(daemon) = own_daemon("a_container_is_removed_with_its_program") else { return };
    let docker = daemon.docker();
    let start = |script: &str| sandbox(&docker).start(&sh(script)).unwrap();
    let forever = "sleep 1000 & echo up; yes";
    let up = |running: &mut Running| {
        let (stdout, stderr) = running.take_output().unwrap();
        let mut lines = BufReader::new(stdout);
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        (lines, stderr)
    };
    // Cancelled, with unread streams.
    let mut running = start(forever);
    let _streams = up(&mut running);
    let begun = Instant::now();
    running.cancel().cancel();
    assert_eq!(running.wait().unwrap().verdict, Verdict::Cancelled);
    println!("a container is cancelled within {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(10));
    // Dropped.
    let mut running = start(forever);
    let _streams = up(&mut running);
    drop(running);
    // Over its time limit.
    let limits = Limits::default().with_wall(Duration::from_secs(1));
    let running = sandbox(&docker).limits(limits).start(&sh("sleep 1000")).unwrap();
    let outcome = running.wait().unwrap();
    assert!(matches!(outcome.verdict, Verdict::Timeout { .. }), "{outcome:?}");
    // Removed by another client.
    let mut running = start(forever);
    let id = running.container().unwrap().to_owned();
    let _streams = up(&mut running);
    daemon.request("POST", &format!("/containers/{id}/kill"), "");
    let error = running.wait().unwrap_err();
    let gone = DockerError::from_sandbox(&error);
    assert!(
        matches!(gone, Some(DockerError::ContainerGone { reason, .. }) if reason.contains("137")),
        "{error}"
    );
    // Not started.
    let error = sandbox(&docker).start(&Program::argv(["no-such-program"])).unwrap().wait().unwrap_err();
    assert!(matches!(error, Error::ProgramNotFound { .. }), "{error}");
    all_gone(&daemon);
}

#[test]
fn a_live_program_gets_its_input_directory_and_limits() {
    let Some(daemon) = Daemon::get("a_live_program_gets_its_input_directory_and_limits") else { return };
    let docker = daemon.docker();
    let given = sandbox(&docker).stdin(Stdin::Bytes(vec![b'x'; 100_000]));
    let mut running = given.start(&Program::argv(["wc", "-c"])).unwrap();
    assert!(running.take_stdin().is_none(), "the input is given");
    assert_eq!(everything(running.take_output().unwrap().0), b"100000\n");
    assert!(running.wait().unwrap().verdict.is_ok());
    // Its changes of a directory are there at its end.
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a"), "old").unwrap();
    let there = sandbox(&docker).workspace(Workspace::Host(directory.path().into()));
    let mut running = there.start(&sh("read -r word; echo $word > a; echo new > b")).unwrap();
    running.take_stdin().unwrap().write_all(b"changed\n").unwrap();
    assert!(running.wait().unwrap().verdict.is_ok());
    let content = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    assert_eq!((content("a"), content("b")), ("changed\n".to_owned(), "new\n".to_owned()));
    let small = sandbox(&docker).limits(
        Limits::default()
            .with_memory(24 << 20)
            .with_workspace_bytes(200 << 20)
            .with_wall(Duration::from_mins(1)),
    );
    let outcome = small.start(&sh("exec tail < /dev/zero")).unwrap().wait().unwrap();
    assert!(matches!(outcome.verdict, Verdict::Memory { .. }), "{outcome:?}");
}
