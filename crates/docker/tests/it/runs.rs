//! Programs in containers: results, limits, leftovers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use toolpost_sandbox::{
    Cancel, Error, Language, Layer, Level, Limits, Outcome, Program, Reached, Sandbox, SandboxEvent, Source,
    Stdin, Verdict,
};

use super::daemon::Daemon;
use super::{run, sandbox};
use toolpost_docker::Docker;

fn shell(sandbox: &Sandbox, code: &str) -> Outcome {
    super::shell(sandbox, code).unwrap()
}

#[test]
fn a_container_run_equals_a_process_run() {
    let Some(daemon) = Daemon::get("a_container_run_equals_a_process_run") else {
        return;
    };
    let docker = daemon.docker();
    let sandbox = sandbox(&docker)
        .level(Level::Strict)
        .file("in/data.txt", Source::Bytes(b"one\n".to_vec()))
        .file("gone", Source::Bytes(vec![b'x'; 100_000]))
        .file("kept", Source::Bytes(b"k".to_vec()))
        .stdin(Stdin::Bytes(vec![b'y'; 200_000]))
        .env("NAME", "value")
        .directory("in");
    let code = "cat data.txt; echo two >> data.txt; rm ../gone; echo new > ../plot.png; mkdir -p ../a/b
        echo x > ../a/b/c; ln -s /etc/passwd ../link; wc -c; echo $NAME; pwd; echo oops >&2; id -u
        echo '::result {\"a\": [1, 2]}'; exit 3";
    let mut events = (Vec::new(), Vec::new());
    let outcome = sandbox
        .run(&Program::code(Language::Sh, code), &Cancel::new(), &mut |event| match event {
            SandboxEvent::Stdout(bytes) => events.0.extend_from_slice(bytes),
            SandboxEvent::Stderr(bytes) => events.1.extend_from_slice(bytes),
            _ => {}
        })
        .unwrap();
    let text = outcome.stdout.text();
    assert_eq!(
        text,
        "one\n200000\nvalue\n/workspace/in\n65534\n::result {\"a\": [1, 2]}\n",
        "{}",
        outcome.stderr.text()
    );
    assert_eq!((events.0, events.1), (outcome.stdout.bytes(), b"oops\n".to_vec()));
    assert_eq!((&outcome.verdict, outcome.exit_code), (&Verdict::Exit { code: 3 }, Some(3)));
    assert_eq!(outcome.value.as_ref().unwrap()["a"][1], 2);
    let names = |paths: &[std::path::PathBuf]| -> Vec<String> {
        paths.iter().map(|path| path.display().to_string()).collect()
    };
    assert_eq!(names(&outcome.changes.new), ["a/b/c", "link", "plot.png"]);
    assert_eq!(names(&outcome.changes.changed), ["in/data.txt"]);
    assert_eq!(names(&outcome.changes.deleted), ["gone"]);
    let artifacts: Vec<_> = outcome.artifacts.iter().map(|artifact| artifact.path.as_str()).collect();
    assert_eq!(artifacts, ["a/b/c", "plot.png", "in/data.txt"], "{:?}", outcome.report.notes);
    assert_eq!(outcome.artifacts[2].read().unwrap(), b"one\ntwo\n");
    assert_eq!(outcome.report.backend, "docker");
    assert!(outcome.usage.peak_memory.is_some() && outcome.usage.wall > Duration::ZERO);
    for layer in [
        Layer::Seccomp,
        Layer::NoCapabilities,
        Layer::NoNewPrivileges,
        Layer::PrivateRoot,
        Layer::NetworkNamespace,
        Layer::MemoryLimit,
        Layer::ProcessLimit,
        Layer::WorkspaceQuota,
        Layer::TreeKill,
    ] {
        assert!(outcome.report.has(layer), "{layer:?}: {:?}", outcome.report);
    }
}

#[test]
fn a_container_is_confined() {
    let Some(daemon) = Daemon::get("a_container_is_confined") else { return };
    let docker = daemon.docker();
    let sandbox = sandbox(&docker);
    for (name, code, expected) in [
        ("the root is read-only", "touch /x 2>&1 | grep -c Read-only", "1"),
        ("no interface but lo", "tail -n +3 /proc/net/dev | grep -vc lo:", "0"),
        ("no socket of the daemon", "find / -name '*.sock' 2>/dev/null | wc -l", "0"),
        ("no process of the host", "ls -d /proc/[0-9]* | wc -l | awk '{print ($1 < 8)}'", "1"),
        ("the first process is closed", "ls /proc/1/fd 2>&1 | grep -c denied", "1"),
        ("its memory too", "cat /proc/1/mem 2>&1 | grep -c denied", "1"),
        ("killing everybody leaves the first process", "kill -9 1; sleep 0.1; echo alive", "alive"),
        (
            "the only files of the host are those that the daemon makes",
            "awk '$4 != \"/\" && $5 !~ \"^/proc|^/sys|^/etc/(hosts|hostname|resolv.conf)$\"' /proc/self/mountinfo",
            "",
        ),
        ("no mount", "mount -t tmpfs x /tmp 2>&1 | grep -c -e denied -e permitted", "1"),
        ("no namespaces", "unshare -U true 2>&1 | grep -c -e denied -e permitted", "1"),
        ("only its own descriptors", "ls /proc/self/fd | tr '\\n' ' '", "0 1 2 3 4 5 "),
        (
            "control groups are read-only",
            "for f in x tasks memory/x memory/tasks memory/release_agent cgroup.procs; do (: > /sys/fs/cgroup/$f) 2>/dev/null && echo $f; done",
            "",
        ),
    ] {
        let outcome = shell(&sandbox, code);
        assert_eq!(
            outcome.stdout.text().trim_end_matches('\n'),
            expected,
            "{name}: {:?}",
            outcome.stderr.text()
        );
    }
}

#[test]
fn limits_of_a_container_are_proved_by_the_kernel() {
    let Some(daemon) = Daemon::get("limits_of_a_container_are_proved_by_the_kernel") else { return };
    let docker = daemon.docker();
    let base = Limits::default().with_wall(Duration::from_secs(30));
    let with = |limits: Limits| sandbox(&docker).limits(limits);

    let rows = [
        (
            // Docker's own start needs up to 24 MiB in the container.
            base.clone().with_memory(48 << 20).with_workspace_bytes(200 << 20),
            "head -c 90000000 /dev/zero > big; echo survived",
            Verdict::Memory { limit: 48 << 20 },
        ),
        (
            base.clone().with_processes(5),
            "for i in 1 2 3 4 5 6 7 8 9; do sleep 5 & done; wait; exit 1",
            Verdict::Processes { limit: 5 },
        ),
        (
            base.clone().with_wall(Duration::from_millis(700)),
            "trap '' TERM INT HUP; (setsid sleep 77 &) ; while true; do sleep 1; done",
            Verdict::Timeout { limit_ms: 700 },
        ),
        (
            base.clone().with_cpu(Duration::from_secs(1)),
            "while true; do :; done",
            Verdict::Cpu { limit_ms: 1000 },
        ),
        (base.clone().with_output_total(1 << 20), "yes", Verdict::Output { limit: 1 << 20 }),
        (
            base.clone().with_workspace_bytes(1 << 20),
            "head -c 5000000 /dev/zero > big",
            Verdict::Disk { limit: 1 << 20 },
        ),
        (
            base.clone().with_workspace_inodes(32),
            "for i in $(seq 99); do : > f$i || exit 1; done",
            Verdict::Inodes { limit: 32 },
        ),
        (
            base.clone().with_idle(Duration::from_millis(600)),
            "echo x; sleep 20",
            Verdict::Idle { limit_ms: 600 },
        ),
        (
            base.clone().with_idle(Duration::from_millis(600)),
            "n=0; while [ $n -lt 8 ]; do sleep 0.3; echo x; n=$((n+1)); done",
            Verdict::Ok,
        ),
        (base.clone(), "exit 137", Verdict::Exit { code: 137 }),
        (base.clone(), "kill -9 $$", Verdict::Signal { signal: 9 }),
    ];
    for (limits, code, expected) in rows {
        let outcome = shell(&with(limits), code);
        assert_eq!(outcome.verdict, expected, "{code}: {outcome:?}");
        let is_memory = matches!(expected, Verdict::Memory { .. });
        assert_eq!(outcome.report.reached.contains(&Reached::Memory), is_memory, "{code}");
        assert!(outcome.usage.wall < Duration::from_secs(15), "{code}: {:?}", outcome.usage.wall);
    }

    let outcome = shell(
        &with(base.clone().with_file_size(4096)),
        "head -c 9000 /dev/zero > f; ls -l f | awk '{print $5}'",
    );
    assert!(outcome.stdout.text().trim() == "4096" || !outcome.verdict.is_ok(), "{outcome:?}");

    let outcome = shell(&with(base.clone().with_descriptors(16)), "ulimit -n");
    assert_eq!(outcome.stdout.text(), "16\n");

    let limits = base.clone().with_stdout(10).with_artifacts(1).with_value_bytes(5);
    let outcome = shell(&with(limits), "echo 0123456789abcdef; echo a > a; echo b > b");
    assert_eq!((outcome.stdout.dropped, outcome.artifacts.len()), (7, 1));
    assert!(outcome.report.reached.contains(&Reached::Stdout));
    assert!(outcome.report.reached.contains(&Reached::Artifacts));
}

#[test]
fn an_idle_container_serves_a_run_and_nothing_leaks() {
    let Some(daemon) = Daemon::get("an_idle_container_serves_a_run_and_nothing_leaks") else { return };
    let docker = Docker::connect(&daemon.host, Daemon::options().idle_containers(2)).unwrap();
    let sandbox = sandbox(&docker);
    assert_eq!(docker.prewarm(&sandbox, 2).unwrap(), 2);
    let leave =
        "echo secret > /workspace/f; echo secret > /tmp/f; echo secret > /dev/shm/f; (setsid sleep 99 &)
        sleep 0.2; ls -A /workspace /tmp /dev/shm | grep -c f$; ps | grep -v grep | grep -c 'sleep 99'";
    let first = shell(&sandbox, leave);
    assert_eq!(first.stdout.text(), "3\n1\n", "what the next runs must not see");
    assert!(!first.report.notes.iter().any(|note| note.contains("no idle container")));
    for _ in 0..3 {
        let look = "ls -A /workspace /tmp /dev/shm | grep -c f$; ps | grep -v grep | grep -c 'sleep 99'";
        let outcome = shell(&sandbox, look);
        assert_eq!(outcome.stdout.text(), "0\n0\n", "{:?}", outcome.stderr.text());
    }
    let names = daemon.containers();
    drop((sandbox, docker));
    assert!(names.iter().all(|name| name.starts_with("toolpost-") && name.len() == 17), "{names:?}");
}

#[test]
fn cancelling_and_hostile_output_are_handled() {
    let Some(daemon) = Daemon::get("cancelling_and_hostile_output_are_handled") else { return };
    let docker = daemon.docker();
    let cancel = Cancel::new();
    let handle = cancel.clone();
    let started = Instant::now();
    let outcome = sandbox(&docker)
        .run(&Program::code(Language::Sh, "echo go; sleep 99"), &cancel, &mut |_| handle.cancel())
        .unwrap();
    assert_eq!(outcome.verdict, Verdict::Cancelled);
    assert!(started.elapsed() < Duration::from_secs(30));
    // Fake frames of our protocol and the daemon's on standard output are only output.
    let fake = r"printf 'x\010\000\000\000\000\000\000\000\000\000\000\000'; printf '\001\000\000\000\377\377\377\377'; printf '\033]52;c;x\007'";
    let outcome = shell(&sandbox(&docker), fake);
    assert!(outcome.verdict.is_ok(), "{outcome:?}");
    assert_eq!(outcome.stdout.head.len(), 13 + 8 + 9);
}

#[test]
fn unsupported_requests_are_rejected_by_containers() {
    let Some(daemon) = Daemon::get("unsupported_requests_are_rejected_by_containers") else { return };
    let docker = daemon.docker();
    let usual = sandbox(&docker);
    let small = sandbox(&docker)
        .limits(Limits::default().with_workspace_bytes(64 << 10))
        .file("a", Source::Bytes(vec![1; 60 << 10]))
        .file("b", Source::Bytes(vec![1; 60 << 10]));
    let unconfined = Sandbox::unconfined().backend(Arc::new(docker.clone()));
    let check = |sandbox: &Sandbox, program: Program, is_expected: fn(&Error) -> bool| {
        let error = run(sandbox, &program).unwrap_err();
        assert!(is_expected(&error), "{program:?}: {error:?}");
    };
    for (language, source) in [(Language::Rust, "fn main() {}"), (Language::Python, "1")] {
        check(&usual, Program::code(language, source), |error| {
            matches!(error, Error::LanguageMissing { language: Language::Rust | Language::Python, .. })
        });
    }
    let named = |name: &str| Program::argv([name]);
    check(&usual, named("no-such-program"), |error| matches!(error, Error::ProgramNotFound { .. }));
    check(&usual, named("/etc/passwd"), |error| matches!(error, Error::NotExecutable { .. }));
    check(&unconfined, named("true"), |error| matches!(error, Error::LevelUnavailable { .. }));
    check(&small, named("true"), |error| matches!(error, Error::File { .. }));
}

#[test]
fn maximum_uses_a_separate_kernel_if_available() {
    let name = "maximum_uses_a_separate_kernel_if_available";
    let Some(daemon) = Daemon::get(name) else { return };
    let with = |runtime: Option<&str>| {
        let mut options = Daemon::options();
        options.runtime = runtime.map(str::to_owned);
        let docker = Docker::connect(&daemon.host, options).unwrap();
        let mut limits = Limits::for_level(Level::Maximum).with_wall(Duration::from_secs(50));
        (limits.cpu, limits.idle) = (None, None);
        let sandbox = Sandbox::new()
            .backend(Arc::new(docker))
            .level(Level::Maximum)
            .limits(limits)
            .file("a", Source::Bytes(vec![7]));
        run(&sandbox, &Program::code(Language::Sh, "uname -r; cat a | wc -c; echo x > b; exit 4")).unwrap()
    };
    let shared = with(Some("runc"));
    let here = rustix::system::uname().release().to_string_lossy().into_owned();
    assert_eq!(shared.verdict, Verdict::Exit { code: 4 }, "{shared:?}");
    assert_eq!(shared.stdout.text(), format!("{here}\n1\n"));
    assert!(shared.report.notes.iter().any(|note| note.contains("no second kernel")), "{:?}", shared.report);
    assert!(shared.report.has(Layer::SeccompAllowlist));
    let killed = {
        let docker = Docker::connect(&daemon.host, Daemon::options().runtime("runc")).unwrap();
        let sandbox = Sandbox::new().backend(Arc::new(docker)).level(Level::Maximum);
        run(&sandbox, &Program::argv(["mount", "-t", "tmpfs", "x", "/tmp"])).unwrap()
    };
    assert!(matches!(killed.verdict, Verdict::Denied { .. }), "{killed:?}");
    if !daemon.has_own_kernel() {
        println!("SKIP {name}: there is no `runsc`; install the package `runsc`");
        return;
    }
    let own = with(None);
    assert_eq!(own.verdict, Verdict::Exit { code: 4 }, "{own:?}");
    let text = own.stdout.text();
    assert!(text.ends_with("\n1\n") && !text.starts_with(&here), "{text}");
    assert_eq!(own.artifacts.len(), 1, "{:?}", own.report);
    assert!(!own.report.notes.iter().any(|note| note.contains("no second kernel")), "{:?}", own.report);
    assert!(!own.report.has(Layer::Seccomp), "the guest's kernel has no profile of ours");
}
