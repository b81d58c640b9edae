//! Live programs, and unconfined programs.

use std::io::{BufRead as _, BufReader, Write as _};
use std::time::Duration;

use toolpost_sandbox::{
    Error, Host, Language, Layer, Level, Limits, Program, Running, Sandbox, Stdin, Verdict, Workspace,
};

use crate::support::{HELPER, Mode, eventually, is_helper, is_running, open_directory, quick};

/// Answers each line with its length.
const ECHO: &str = "while read -r line; do echo ${#line}; done; echo end; echo bye >&2; exit 5";

fn bash(script: &str) -> Program {
    Program::argv(["bash", "-c", script])
}

/// Every way to start a program on this host.
fn every_way() -> Vec<(String, Sandbox)> {
    let mut ways: Vec<(String, Sandbox)> =
        Mode::available().into_iter().map(|mode| (format!("{mode:?}"), mode.sandbox())).collect();
    let unconfined = || Sandbox::unconfined().limits(quick());
    ways.push(("unconfined".into(), unconfined()));
    ways.push(("unconfined, poor host".into(), unconfined().host(Host::probe().without_namespaces())));
    let poorest = Host::probe().without_namespaces().without_cgroups();
    ways.push(("unconfined, poorest host".into(), unconfined().host(poorest)));
    ways
}

fn everything(mut stream: impl std::io::Read) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_live_program_answers_line_by_line() {
    for (way, sandbox) in every_way() {
        let mut running = sandbox.start(&bash(ECHO)).unwrap();
        let mut stdin = running.take_stdin().unwrap();
        let (stdout, stderr) = running.take_output().unwrap();
        assert!(running.take_stdin().is_none() && running.take_output().is_none());
        let mut lines = BufReader::new(stdout);
        for text in ["a", "four", ""] {
            writeln!(stdin, "{text}").unwrap();
            let mut answer = String::new();
            lines.read_line(&mut answer).unwrap();
            assert_eq!(answer, format!("{}\n", text.len()), "{way}");
        }
        assert!(!running.is_finished(), "{way}");
        drop(stdin);
        assert_eq!(everything(lines), "end\n", "{way}");
        assert_eq!(everything(stderr), "bye\n", "{way}");
        let outcome = running.wait().unwrap();
        assert_eq!((&outcome.verdict, outcome.exit_code), (&Verdict::Exit { code: 5 }, Some(5)), "{way}");
        assert!(outcome.stdout.bytes().is_empty() && outcome.artifacts.is_empty(), "{way}");
    }
}

#[test]
fn fixed_input_is_written_and_waiting_ends_the_input() {
    let mode = Mode::available().pop().unwrap();
    let given = mode.sandbox().stdin(Stdin::Bytes(b"ab\n".to_vec()));
    let mut running = given.start(&bash(ECHO)).unwrap();
    assert!(running.take_stdin().is_none());
    let (stdout, _stderr) = running.take_output().unwrap();
    assert_eq!(everything(stdout), "2\nend\n");
    let cat = mode.sandbox().start(&Program::argv(["cat"])).unwrap();
    assert!(cat.wait().unwrap().verdict.is_ok());
    let mut code = mode.sandbox().start(&Program::code(Language::Python, "print(input())")).unwrap();
    writeln!(code.take_stdin().unwrap(), "said").unwrap();
    let (stdout, _stderr) = code.take_output().unwrap();
    assert_eq!(everything(stdout), "said\n");
}

/// A program that would survive its end if it could, and has printed that it runs.
fn stubborn(sandbox: &Sandbox, marker: &str) -> Running {
    let script = format!(
        "trap '' TERM INT HUP; (setsid sleep {marker} >/dev/null 2>&1 &) ; sleep {marker} & echo up; while :; do sleep {marker}; done"
    );
    let mut running = sandbox.start(&bash(&script)).unwrap();
    let (stdout, stderr) = running.take_output().unwrap();
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    drop(stderr);
    assert_eq!(line, "up\n");
    eventually("its children run", || is_running(&format!("sleep {marker}")));
    running
}

#[test]
fn every_end_of_a_program_ends_everything_that_it_started() {
    for (number, (way, sandbox)) in every_way().into_iter().enumerate() {
        // This test may run concurrently as another user.
        let marker = format!("77{}{number}", std::process::id());
        let dead = || !is_running(&format!("sleep {marker}"));
        drop(stubborn(&sandbox, &marker));
        assert!(dead(), "{way}: dropped");

        let running = stubborn(&sandbox, &marker);
        running.cancel().cancel();
        assert_eq!(running.wait().unwrap().verdict, Verdict::Cancelled, "{way}");
        assert!(dead(), "{way}: cancelled");

        let limited = sandbox.clone().limits(quick().with_wall(Duration::from_millis(1500)));
        let outcome = stubborn(&limited, &marker).wait().unwrap();
        assert_eq!(outcome.verdict, Verdict::Timeout { limit_ms: 1500 }, "{way}");
        assert!(dead(), "{way}: timeout");

        let ends = bash(&format!("(setsid sleep {marker} >/dev/null 2>&1 &); exit 0"));
        assert!(sandbox.start(&ends).unwrap().wait().unwrap().verdict.is_ok(), "{way}");
        assert!(dead(), "{way}: ended by itself");
    }
}

#[test]
fn a_program_outlives_the_thread_that_started_it() {
    for (way, sandbox) in every_way() {
        let mut running = std::thread::spawn(move || sandbox.start(&bash(ECHO)).unwrap()).join().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        writeln!(running.take_stdin().unwrap(), "abc").unwrap();
        let (stdout, _stderr) = running.take_output().unwrap();
        assert_eq!(everything(stdout), "3\nend\n", "{way}");
    }
}

#[test]
fn limits_hold_and_are_named() {
    let host = Host::probe();
    let memory = host.capabilities.iter().any(|entry| entry.name == "cgroup_memory" && entry.available);
    for (way, sandbox) in every_way() {
        let limits: Limits = quick().with_memory(64 << 20).with_descriptors(40).with_file_size(4096);
        let start = |script: &str| sandbox.clone().limits(limits.clone()).start(&bash(script)).unwrap();
        let mut running = start("ulimit -n; ulimit -f");
        let (stdout, _stderr) = running.take_output().unwrap();
        assert_eq!(everything(stdout), "40\n4\n", "{way}");
        let outcome = start("x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x} >&2").wait().unwrap();
        assert!(!outcome.verdict.is_ok(), "{way}: {outcome:?}");
        if memory && !way.contains("poorest") {
            assert_eq!(outcome.verdict, Verdict::Memory { limit: 64 << 20 }, "{way}");
        }
    }
}

#[test]
fn a_failed_start_names_the_reason() {
    for (way, sandbox) in every_way() {
        let error = sandbox.start(&Program::argv(["no-such-program-here"])).unwrap_err();
        assert!(matches!(error, Error::ProgramNotFound { .. }), "{way}: {error}");
        let running = sandbox.start(&Program::argv(["./no-such-program"])).unwrap();
        let error = running.wait().unwrap_err();
        assert!(matches!(error, Error::ProgramNotStarted { .. }), "{way}: {error}");
    }
    let poor = Sandbox::new().level(Level::Strict).host(Host::probe().without_namespaces());
    assert!(matches!(poor.start(&bash("exit 0")).unwrap_err(), Error::LevelUnavailable { .. }));
    let read_only = Sandbox::unconfined().workspace(Workspace::ReadOnlyHost("/usr".into()));
    assert!(matches!(read_only.start(&bash("exit 0")).unwrap_err(), Error::Workspace { .. }));
}

#[test]
fn an_unconfined_program_is_reported_as_such() {
    let directory = open_directory();
    std::fs::write(directory.path().join("seen"), "x").unwrap();
    for host in [Host::probe().clone(), Host::probe().without_namespaces()] {
        let sandbox = Sandbox::unconfined()
            .workspace(Workspace::Host(directory.path().to_owned()))
            .env("GIVEN", "1")
            .host(host.clone());
        let mut running =
            sandbox.start(&bash("id -u; cat seen; pwd; env | cut -d= -f1 | sort | tr '\\n' ' '")).unwrap();
        let (stdout, _stderr) = running.take_output().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let place = directory.path().canonicalize().unwrap();
        let expected =
            format!("{user}\nx{}\nGIVEN HOME LANG PATH PWD SHLVL TERM TMPDIR USER _ ", place.display());
        assert_eq!(everything(stdout), expected);
        let report = running.wait().unwrap().report;
        assert_eq!((report.requested, report.effective), (Some(Level::Unconfined), Level::Unconfined));
        let namespaces = host.availability(Level::Strict).unwrap().available;
        assert_eq!(report.has(Layer::PidNamespace) && report.has(Layer::TreeKill), namespaces, "{report:?}");
        for layer in [Layer::Seccomp, Layer::LandlockFiles, Layer::PrivateRoot, Layer::NoCapabilities] {
            assert!(!report.has(layer), "{report:?}");
        }
    }
    let fresh = Sandbox::unconfined().start(&bash("echo x > file")).unwrap().wait().unwrap();
    assert!(fresh.verdict.is_ok() && fresh.artifacts.is_empty());
    let captured =
        Sandbox::unconfined().run(&bash("echo out"), &toolpost_sandbox::Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(captured.stdout.text(), "out\n");
}

#[test]
fn unconfined_cannot_be_parsed_from_text() {
    assert!("unconfined".parse::<Level>().is_err());
    assert!(serde_json::from_str::<Level>("\"unconfined\"").is_err());
    assert!(!Level::ALL.contains(&Level::Unconfined) && Level::Unconfined < Level::Standard);
    assert_eq!(serde_json::to_value(Level::Unconfined).unwrap(), "unconfined");
}

/// The host program is killed without a chance to clean up.
#[test]
fn a_killed_host_ends_its_programs() {
    if !Host::probe().availability(Level::Strict).unwrap().available {
        println!("SKIP a_killed_host_ends_its_programs: no process namespaces");
        return;
    }
    #[expect(clippy::disallowed_methods, reason = "the test program itself, alone")]
    let mut host = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "starts::helper_host_to_be_killed", "--nocapture", "--test-threads", "1"])
        .env(HELPER, "1")
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let sleeping = format!("sleep 78{}", std::process::id());
    eventually("it runs", || is_running(&sleeping));
    host.kill().unwrap();
    host.wait().unwrap();
    eventually("nothing survives", || !is_running(&sleeping));
}

#[test]
fn helper_host_to_be_killed() {
    // For a_killed_host_ends_its_programs.
    if !is_helper() {
        return;
    }
    let marker = format!("78{}", std::os::unix::process::parent_id());
    let running = stubborn(&Sandbox::unconfined().limits(quick()), &marker);
    let _ = running.wait();
}
